//! How series look: colour, marker, dash and hatching, on light and on dark.

use super::Series;
use super::svg::number;
use std::fmt::Write as _;

/// The style sheet of every figure. Classes begin with `tg-`, so that it can stand in a page.
/// The colours differ in hue for most kinds of colour blindness and in lightness for the others.
pub const STYLE: &str = "\
.tg-figure{font-family:system-ui,'DejaVu Sans',Arial,sans-serif;font-size:12px}\
.tg-figure text{fill:#24292f}\
.tg-figure .tg-title{font-size:16px;font-weight:600}\
.tg-figure .tg-label{font-size:13px}\
.tg-figure .tg-tick,.tg-figure .tg-muted{fill:#57606a}\
.tg-figure .tg-note{font-size:11px;fill:#57606a}\
.tg-figure .tg-value{font-size:11px}\
.tg-back{fill:#fff}\
.tg-grid{stroke:#dfe3e8;fill:none}\
.tg-axis{stroke:#57606a;fill:none}\
.tg-line{fill:none;stroke:currentColor;stroke-linejoin:round}\
.tg-full{fill:currentColor;stroke:#fff;stroke-width:1}\
.tg-hollow{fill:#fff;stroke:currentColor;stroke-width:1.8}\
.tg-bar{stroke:currentColor;stroke-width:1}\
.tg-hatch{stroke:#fff;stroke-width:1.6;fill:none}\
.tg-dot{fill:#fff}\
.tg-k{color:#57606a}\
.tg-c0{color:#0069b4}.tg-c1{color:#d9720b}.tg-c2{color:#00785a}.tg-c3{color:#b8438c}\
.tg-c4{color:#3b2f8f}.tg-c5{color:#a88600}.tg-c6{color:#3fa9d8}.tg-c7{color:#6b4423}\
@media (prefers-color-scheme:dark){\
.tg-figure text{fill:#e6edf3}\
.tg-figure .tg-tick,.tg-figure .tg-muted,.tg-figure .tg-note{fill:#9da7b1}\
.tg-back,.tg-hollow,.tg-dot{fill:#14181d}\
.tg-grid{stroke:#30363d}.tg-axis{stroke:#9da7b1}\
.tg-full,.tg-hatch{stroke:#14181d}\
.tg-hollow{stroke:currentColor}\
.tg-k{color:#9da7b1}\
.tg-c0{color:#4ba6f0}.tg-c1{color:#f59340}.tg-c2{color:#2bbf95}.tg-c3{color:#e27ebd}\
.tg-c4{color:#9d92f5}.tg-c5{color:#d9b92e}.tg-c6{color:#8fd6f7}.tg-c7{color:#c39a72}\
}";

const COLOURS: usize = 8;

/// How one series looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Its place among the looks: two series of one name share it.
    pub index: usize,
    /// Whether a paper reports it.
    pub hollow: bool,
    /// Whether a measured series of the same name is in the figure.
    pub twin: bool,
}

/// A look for each series: measured ones in turn, published ones as their namesakes.
pub(super) fn looks(series: &[Series]) -> Vec<Look> {
    let mut names: Vec<&str> = Vec::new();
    for one in series.iter().filter(|one| !one.from_paper) {
        names.push(&one.name);
    }
    let measured = names.len();
    let mut next = 0;
    let mut looks = Vec::with_capacity(series.len());
    for one in series {
        if !one.from_paper {
            looks.push(Look {
                index: next,
                hollow: false,
                twin: false,
            });
            next += 1;
            continue;
        }
        let index = names.iter().position(|name| *name == one.name);
        looks.push(Look {
            index: index.unwrap_or(names.len()),
            hollow: true,
            twin: index.is_some_and(|index| index < measured),
        });
        if index.is_none() {
            names.push(&one.name);
        }
    }
    looks
}

impl Look {
    /// The class that sets its colour.
    pub fn colour(&self) -> String {
        format!("tg-c{}", self.index % COLOURS)
    }

    /// The dashes of its line; empty for none.
    pub fn dashes(&self) -> &'static str {
        const DASHES: [&str; 7] = ["", "8 4", "2 3", "10 3 2 3", "5 2", "14 4", "8 3 2 3 2 3"];
        DASHES[self.index % DASHES.len()]
    }

    /// Its marker at a place. From the ninth series on colours come again, with other markers.
    pub fn marker(&self, x: f64, y: f64) -> String {
        const SHAPES: [&str; 8] = [
            // Circle, square, triangles up and down, diamond, plus, triangle right, hourglass.
            "m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
            "m-4 -4h8v8h-8z",
            "m0 -5.4l5 9h-10z",
            "m0 -6l5 6l-5 6l-5 -6z",
            "m0 5.4l5 -9h-10z",
            "m-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
            "m5.4 0l-9 5v-10z",
            "m-4.5 -5h9l-9 10h9z",
        ];
        let shape = SHAPES[(self.index + self.index / COLOURS) % SHAPES.len()];
        let class = if self.hollow { "tg-hollow" } else { "tg-full" };
        format!(
            "<path class=\"{class}\" d=\"M{} {}{shape}\"/>\n",
            number(x),
            number(y)
        )
    }

    /// What fills its bars.
    pub fn fill(&self, id: &str) -> String {
        if self.hollow {
            return "none".to_owned();
        }
        if self.index == 0 {
            return "currentColor".to_owned();
        }
        format!("url(#{id}-fill{})", self.index)
    }
}

/// The hatchings of all series but the first, which is plain.
pub(super) fn patterns(id: &str, looks: &[Look]) -> String {
    const HATCHES: [&str; 7] = [
        "<path class=\"tg-hatch\" d=\"M-2 2L2 -2M0 8L8 0M6 10L10 6\"/>",
        "<circle class=\"tg-dot\" cx=\"2\" cy=\"2\" r=\"1.2\"/>\
         <circle class=\"tg-dot\" cx=\"6\" cy=\"6\" r=\"1.2\"/>",
        "<path class=\"tg-hatch\" d=\"M-2 6L2 10M0 0L8 8M6 -2L10 2\"/>",
        "<path class=\"tg-hatch\" d=\"M0 4H8\"/>",
        "<path class=\"tg-hatch\" d=\"M0 0L8 8M0 8L8 0\"/>",
        "<path class=\"tg-hatch\" d=\"M4 0V8\"/>",
        "<path class=\"tg-hatch\" d=\"M0 4H8M4 0V8\"/>",
    ];
    let mut out = String::from("<defs>\n");
    for look in looks.iter().filter(|look| !look.hollow && look.index > 0) {
        let _ = writeln!(
            out,
            "<pattern id=\"{id}-fill{}\" class=\"{}\" width=\"8\" height=\"8\" \
             patternUnits=\"userSpaceOnUse\"><rect width=\"8\" height=\"8\" \
             fill=\"currentColor\"/>{}</pattern>",
            look.index,
            look.colour(),
            HATCHES[(look.index - 1) % HATCHES.len()]
        );
    }
    out + "</defs>\n"
}

//! The legend of a figure, in rows between title and plot.

use super::lines::dash_attribute;
use super::style::Look;
use super::svg::{Anchor, number, text, text_width};
use super::{Figure, Kind, LINE, MARGIN, WIDTH};
use std::fmt::Write as _;

/// The room for the picture before a name.
const PICTURE: f64 = 42.0;
const GAP: f64 = 18.0;

/// Draws the legend below `top`; returns its height. Published series whose namesake is measured
/// share one entry.
pub(super) fn draw(out: &mut String, figure: &Figure, looks: &[Look], id: &str, top: f64) -> f64 {
    let (mut x, mut y) = (MARGIN, top + LINE);
    let mut entry =
        |out: &mut String, class: &str, picture: &dyn Fn(f64, f64) -> String, name: &str| {
            let width = PICTURE + text_width(name, 12.0) + GAP;
            if x > MARGIN && x + width - GAP > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LINE);
            }
            let _ = writeln!(out, "<g class=\"{class}\">\n{}</g>", picture(x, y - 4.0));
            *out += &text("tg-tick", x + PICTURE, y, Anchor::Start, name);
            x += width;
        };
    let bars = matches!(figure.kind, Kind::Bars { .. });
    for (series, look) in figure.series.iter().zip(looks) {
        let picture = |x, y| match (bars, look.hollow) {
            (true, _) => swatch(*look, id, x, y),
            (false, true) => look.marker(x + 18.0, y),
            (false, false) => sample(*look, x, y),
        };
        if look.twin {
            continue;
        }
        let mut name = series.name.clone();
        if look.hollow {
            name += " (published)";
        }
        entry(out, &look.colour(), &picture, &name);
    }
    if let Some(twin) = looks.iter().find(|look| look.twin) {
        // With one pair the marker is its own; else a circle stands for all of them.
        let pairs = looks.iter().filter(|look| look.twin).count();
        let look = Look {
            index: if pairs == 1 { twin.index } else { 0 },
            ..*twin
        };
        let class = if pairs == 1 {
            look.colour()
        } else {
            "tg-k".to_owned()
        };
        entry(
            out,
            &class,
            &|x, y| look.marker(x + 18.0, y),
            "hollow: as published",
        );
    }
    if figure.series.is_empty() {
        0.0
    } else {
        y - top + 6.0
    }
}

/// A piece of line with its marker.
fn sample(look: Look, x: f64, y: f64) -> String {
    format!(
        "<path class=\"tg-line\" stroke-width=\"2\"{} d=\"M{} {}h36\"/>\n{}",
        dash_attribute(look),
        number(x),
        number(y),
        look.marker(x + 18.0, y)
    )
}

/// A piece of bar.
fn swatch(look: Look, id: &str, x: f64, y: f64) -> String {
    let dashes = if look.hollow {
        " stroke-dasharray=\"4 2\""
    } else {
        ""
    };
    format!(
        "<rect class=\"tg-bar\" x=\"{}\" y=\"{}\" \
         width=\"34\" height=\"12\" fill=\"{}\"{dashes}/>\n",
        number(x + 1.0),
        number(y - 6.0),
        look.fill(id)
    )
}

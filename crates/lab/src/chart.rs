//! Figures as SVG: line charts and grouped bar charts, from plain numbers to text, without
//! dependencies.
//!
//! Series differ by colour, marker, dash and hatching, so a figure can be read in grey; values that
//! a paper reports are hollow markers. Colours follow the reader's choice of light or dark. The
//! same figure gives the same bytes on every machine.
//!
//! The crate plotters (0.3.7) would lose that. It spreads logarithmic axes with `ln` and chooses
//! round numbers with `log` and `powf`, whose last digit Rust leaves to the mathematical library of
//! each machine, so that a number beside an axis can come and go. Its SVG has fixed colours, and
//! neither hatching nor classes for a style of light and dark.

mod bars;
mod legend;
mod lines;
mod scale;
mod style;
mod svg;

pub(crate) use style::STYLE;
pub(crate) use svg::escape;

use scale::Axis;
use std::fmt::Write as _;
use svg::{Anchor, number, text, text_width, wrap};

/// A figure: what to draw, not how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// The title above the figure.
    pub title: String,
    /// What the x axis shows, with its unit.
    pub x_label: String,
    /// What the y axis shows, with its unit.
    pub y_label: String,
    /// Lines or bars.
    pub kind: Kind,
    /// What is compared, in the order of the legend.
    pub series: Vec<Series>,
    /// Small print below: protocol, seed, machine. Empty for none.
    pub note: String,
}

/// How a figure shows its series.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A line for each series, over numbers.
    Lines {
        /// How the numbers are spread over the x axis.
        x_scale: Scale,
    },
    /// For each group a bar of each series. The x of a point is the index of its group, from 0.
    Bars {
        /// The names of the groups, from left to right.
        groups: Vec<String>,
    },
}

impl Default for Kind {
    fn default() -> Kind {
        Kind::Lines {
            x_scale: Scale::Linear,
        }
    }
}

/// How an axis spreads its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally far apart.
    #[default]
    Linear,
    /// Each doubling is equally far apart; for counts of servers, sizes in bytes. Points that are
    /// not above 0 are left out.
    Log2,
}

/// Values that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, as x and y. Those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// Whether a paper reports these values: then they are drawn as hollow markers, in the colour
    /// of the measured series of the same name if there is one.
    pub from_paper: bool,
}

/// The width of every figure; its height follows from what it holds.
const WIDTH: f64 = 760.0;
const PLOT_HEIGHT: f64 = 320.0;
const MARGIN: f64 = 16.0;
/// Room for a line of text, and for one of small print.
const LINE: f64 = 19.0;
const SMALL_LINE: f64 = 15.0;
/// From the plot to the first line of tick labels below it.
const TICK_DROP: f64 = 18.0;

/// The area between the axes.
#[derive(Clone, Copy)]
struct Plot {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Plot {
    /// The place of a share of the width.
    fn x(&self, share: f64) -> f64 {
        self.left + share * self.width
    }

    /// The place of a share of the height, from the bottom.
    fn y(&self, share: f64) -> f64 {
        self.top + (1.0 - share) * self.height
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

impl Figure {
    /// The figure as a file of its own.
    pub fn svg(&self) -> String {
        let (body, height) = self.body("figure");
        format!(
            "{}\n<style>{STYLE}</style>\n\
             <rect class=\"tg-back\" width=\"{}\" height=\"{}\"/>\n{body}</svg>\n",
            self.head("figure", height),
            number(WIDTH),
            number(height),
        )
    }

    /// The figure as a part of a page that contains [`STYLE`]. `id` is unique on the page, of
    /// letters, digits and hyphens.
    pub(crate) fn fragment(&self, id: &str) -> String {
        let (body, height) = self.body(id);
        format!("{}\n{body}</svg>\n", self.head(id, height))
    }

    fn head(&self, id: &str, height: f64) -> String {
        let size = format!("{} {}", number(WIDTH), number(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tg-figure\" viewBox=\"0 0 {size}\" \
             width=\"{}\" height=\"{}\" role=\"img\" aria-labelledby=\"{id}-title\">\n\
             <title id=\"{id}-title\">{}</title>",
            number(WIDTH),
            number(height),
            escape(&self.title),
        )
    }

    /// Everything inside, and how high it is.
    fn body(&self, id: &str) -> (String, f64) {
        let mut out = String::new();
        let looks = style::looks(&self.series);
        let mut top = MARGIN;
        for line in wrap(&self.title, 16.0, WIDTH - 2.0 * MARGIN) {
            top += LINE;
            out += &text("tg-title", MARGIN, top - 4.0, Anchor::Start, &line);
        }
        top += legend::draw(&mut out, self, &looks, id, top);
        top += LINE;
        out += &text("tg-label", MARGIN, top - 2.0, Anchor::Start, &self.y_label);
        top += 11.0;
        let y_axis = self.y_axis();
        let labels = y_axis
            .ticks
            .iter()
            .map(|tick| text_width(&tick.label, 12.0));
        let left = MARGIN + labels.fold(0.0, f64::max) + 8.0;
        let plot = Plot {
            left,
            top,
            width: WIDTH - left - MARGIN - 8.0,
            height: PLOT_HEIGHT,
        };
        let mut below = match &self.kind {
            Kind::Lines { x_scale } => {
                let x_axis = self.x_axis(*x_scale);
                let series = self.points(*x_scale);
                draw_y(&mut out, &plot, &y_axis);
                lines::draw(&mut out, &plot, &x_axis, &y_axis, &series, &looks)
            }
            Kind::Bars { groups } => {
                out += &style::patterns(id, &looks);
                draw_y(&mut out, &plot, &y_axis);
                let bars = bars::Bars {
                    id,
                    groups,
                    series: &self.series,
                    looks: &looks,
                };
                bars.draw(&mut out, &plot, &y_axis)
            }
        };
        if !self.has_values() {
            let middle = (plot.x(0.5), plot.y(0.5));
            out += &text("tg-muted", middle.0, middle.1, Anchor::Middle, "no values");
        }
        for line in wrap(&self.x_label, 13.0, plot.width) {
            below += LINE;
            out += &text("tg-label", plot.x(0.5), below, Anchor::Middle, &line);
        }
        below += 6.0;
        for line in wrap(&self.note, 11.0, WIDTH - 2.0 * MARGIN) {
            below += SMALL_LINE;
            out += &text("tg-note", MARGIN, below, Anchor::Start, &line);
        }
        (out, below + MARGIN)
    }

    fn has_values(&self) -> bool {
        let mut series = self.points(self.x_scale()).into_iter();
        series.any(|points| !points.is_empty())
    }

    fn x_scale(&self) -> Scale {
        match self.kind {
            Kind::Lines { x_scale } => x_scale,
            Kind::Bars { .. } => Scale::Linear,
        }
    }

    /// The points of each series that can be drawn, by ascending x.
    fn points(&self, x_scale: Scale) -> Vec<Vec<(f64, f64)>> {
        let drawable = |(x, y): &(f64, f64)| {
            x.is_finite() && y.is_finite() && (x_scale == Scale::Linear || *x > 0.0)
        };
        let sorted = |series: &Series| {
            let mut points: Vec<_> = series.points.iter().copied().filter(drawable).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        self.series.iter().map(sorted).collect()
    }

    fn x_axis(&self, scale: Scale) -> Axis {
        let points = self.points(scale);
        Axis::new(scale, points.iter().flatten().map(|point| point.0), 9)
    }

    /// Bars stand on 0. Lines start at 0 too, unless all values lie close together far from it.
    fn y_axis(&self) -> Axis {
        let points = self.points(self.x_scale());
        let values = points.iter().flatten().map(|point| point.1);
        let lowest = values.clone().fold(f64::INFINITY, f64::min);
        let highest = values.clone().fold(f64::NEG_INFINITY, f64::max);
        let far = lowest > 0.75 * highest && lowest > 0.0;
        let far = far || (highest < 0.75 * lowest && highest < 0.0);
        let bars = matches!(self.kind, Kind::Bars { .. });
        let zero = (bars || !far).then_some(0.0);
        Axis::new(Scale::Linear, values.chain(zero), 6)
    }
}

/// The horizontal lines and their labels; the line of 0 is the axis.
fn draw_y(out: &mut String, plot: &Plot, axis: &Axis) {
    for tick in &axis.ticks {
        let y = plot.y(tick.share);
        let class = if tick.zero { "tg-axis" } else { "tg-grid" };
        let _ = writeln!(
            out,
            "<path class=\"{class}\" d=\"M{} {}h{}\"/>",
            number(plot.left),
            number(y),
            number(plot.width)
        );
        *out += &text(
            "tg-tick",
            plot.left - 8.0,
            y + 4.0,
            Anchor::End,
            &tick.label,
        );
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::check_markup;

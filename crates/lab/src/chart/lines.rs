//! The lines of a figure, their markers, and the x axis below.

use super::scale::Axis;
use super::style::Look;
use super::svg::{Anchor, number, text, text_width};
use super::{Plot, TICK_DROP};
use std::fmt::Write as _;

/// A line of more points has a marker at some of them only.
const MARKERS_MAX: usize = 24;
/// A line of more points is thin and has no dashes, because one could not tell them from its turns.
const DASHED_MAX: usize = 100;

/// Draws x axis and lines; returns how far down they reach.
pub(super) fn draw(
    out: &mut String,
    plot: &Plot,
    x_axis: &Axis,
    y_axis: &Axis,
    series: &[Vec<(f64, f64)>],
    looks: &[Look],
) -> f64 {
    draw_x(out, plot, x_axis);
    // Published values last, so that nothing hides them.
    for hollow in [false, true] {
        for (points, look) in series.iter().zip(looks) {
            if look.hollow == hollow && !points.is_empty() {
                let place =
                    |(x, y): &(f64, f64)| (plot.x(x_axis.share(*x)), plot.y(y_axis.share(*y)));
                line(out, *look, points.iter().map(place).collect());
            }
        }
    }
    plot.bottom() + TICK_DROP
}

fn draw_x(out: &mut String, plot: &Plot, axis: &Axis) {
    let _ = writeln!(
        out,
        "<path class=\"tg-axis\" d=\"M{} {}h{}\"/>",
        number(plot.left),
        number(plot.bottom()),
        number(plot.width)
    );
    let mut free_from = 0.0;
    for tick in &axis.ticks {
        let x = plot.x(tick.share);
        let _ = writeln!(
            out,
            "<path class=\"tg-axis\" d=\"M{} {}v5\"/>",
            number(x),
            number(plot.bottom())
        );
        // A number that would touch the one before is left out.
        let half = text_width(&tick.label, 12.0) / 2.0;
        if x - half >= free_from {
            let y = plot.bottom() + TICK_DROP;
            *out += &text("tg-tick", x, y, Anchor::Middle, &tick.label);
            free_from = x + half + 4.0;
        }
    }
}

fn line(out: &mut String, look: Look, places: Vec<(f64, f64)>) {
    let _ = writeln!(out, "<g class=\"{}\">", look.colour());
    if !look.hollow && places.len() > 1 {
        let mut path = String::new();
        for (i, (x, y)) in places.iter().enumerate() {
            let verb = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{verb}{} {}", number(*x), number(*y));
        }
        let style = if places.len() > DASHED_MAX {
            " stroke-width=\"1.2\"".to_owned()
        } else {
            format!(" stroke-width=\"2\"{}", dash_attribute(look))
        };
        let _ = writeln!(out, "<path class=\"tg-line\"{style} d=\"{path}\"/>");
    }
    let stride = if look.hollow {
        1
    } else {
        places.len().div_ceil(MARKERS_MAX)
    };
    for (x, y) in places.iter().step_by(stride) {
        *out += &look.marker(*x, *y);
    }
    *out += "</g>\n";
}

/// The dashes of a line as an attribute.
pub(super) fn dash_attribute(look: Look) -> String {
    match look.dashes() {
        "" => String::new(),
        dashes => format!(" stroke-dasharray=\"{dashes}\""),
    }
}

//! The bars of a figure: a group for each name below, a bar in it for each series.

use super::scale::{Axis, three_digits};
use super::style::Look;
use super::svg::{Anchor, number, shorten, text, text_width, wrap};
use super::{Plot, SMALL_LINE, Series, TICK_DROP};
use std::fmt::Write as _;

/// A name aslant is cut to this length.
const ASLANT_MAX: f64 = 180.0;
/// Of 35 degrees.
const SINE: f64 = 0.574;
const COSINE: f64 = 0.819;

/// What the bars show.
pub(super) struct Bars<'a> {
    /// The figure's id, for its hatchings.
    pub id: &'a str,
    pub groups: &'a [String],
    pub series: &'a [Series],
    pub looks: &'a [Look],
}

/// Where the bars of a group lie, from its left edge.
struct Layout {
    /// The left edge of each series' bar. Series that are drawn beside a namesake share its bar.
    bars: Vec<f64>,
    width: f64,
    /// Room for published values, to the right of a bar.
    beside: f64,
    group: f64,
}

impl Bars<'_> {
    /// Draws bars and the names of the groups; returns how far down they reach.
    pub fn draw(&self, out: &mut String, plot: &Plot, axis: &Axis) -> f64 {
        let layout = self.layout(plot);
        for (series, look) in self.series.iter().zip(self.looks) {
            let _ = writeln!(out, "<g class=\"{}\">", look.colour());
            let bar = layout.bars[look.index];
            for (group, value) in self.values(series) {
                let left = plot.left + layout.group * group as f64 + bar;
                if look.twin {
                    let (x, y) = (left + layout.width + layout.beside / 2.0, axis.share(value));
                    *out += &look.marker(x, plot.y(y));
                } else {
                    self.bar(out, plot, axis, *look, (left, layout.width), value);
                }
            }
            *out += "</g>\n";
        }
        self.names(out, plot, layout.group)
    }

    /// The last value of each group that can be drawn.
    fn values(&self, series: &Series) -> Vec<(usize, f64)> {
        let mut values = vec![None; self.groups.len()];
        for (x, y) in &series.points {
            // A float that is no index is beyond every group, or below the first.
            if *x >= 0.0 && y.is_finite() && x.floor() == *x && *x < values.len() as f64 {
                values[*x as usize] = Some(*y);
            }
        }
        let values = values.into_iter().enumerate();
        values
            .filter_map(|(group, value)| Some((group, value?)))
            .collect()
    }

    fn layout(&self, plot: &Plot) -> Layout {
        let group = plot.width / self.groups.len().max(1) as f64;
        let bars = self.looks.iter().map(|look| look.index + 1).max();
        let bars = bars.unwrap_or(1);
        let has_twin: Vec<bool> = (0..bars)
            .map(|index| {
                self.looks
                    .iter()
                    .any(|look| look.twin && look.index == index)
            })
            .collect();
        let twins = has_twin.iter().filter(|twin| **twin).count();
        // A fifth of a group is the gap to the next one.
        let room = group * 0.8;
        let beside = (room / bars as f64 * 0.3).min(14.0);
        let width = ((room - beside * twins as f64) / bars as f64).min(64.0);
        let mut left = (group - width * bars as f64 - beside * twins as f64) / 2.0;
        let mut places = Vec::with_capacity(bars);
        for twin in has_twin {
            places.push(left);
            left += width + if twin { beside } else { 0.0 };
        }
        Layout {
            bars: places,
            width,
            beside,
            group,
        }
    }

    fn bar(
        &self,
        out: &mut String,
        plot: &Plot,
        axis: &Axis,
        look: Look,
        (left, width): (f64, f64),
        value: f64,
    ) {
        let (zero, end) = (plot.y(axis.share(0.0)), plot.y(axis.share(value)));
        let dashes = if look.hollow {
            " stroke-dasharray=\"4 2\""
        } else {
            ""
        };
        let _ = writeln!(
            out,
            "<rect class=\"tg-bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" \
             fill=\"{}\"{dashes}/>",
            number(left + 1.0),
            number(zero.min(end)),
            number((width - 2.0).max(1.0)),
            number((zero - end).abs()),
            look.fill(self.id)
        );
        let label = three_digits(value);
        if text_width(&label, 11.0) <= width + 4.0 {
            let y = if value < 0.0 { end + 13.0 } else { end - 5.0 };
            *out += &text("tg-value", left + width / 2.0, y, Anchor::Middle, &label);
        }
    }

    /// The names below the groups: in lines where they fit, else aslant.
    fn names(&self, out: &mut String, plot: &Plot, group: f64) -> f64 {
        let room = group - 6.0;
        let words = self.groups.iter().flat_map(|name| name.split_whitespace());
        let widest = words.map(|word| text_width(word, 12.0)).fold(0.0, f64::max);
        let (top, mut bottom) = (plot.bottom() + TICK_DROP, plot.bottom() + TICK_DROP);
        for (i, name) in self.groups.iter().enumerate() {
            let x = plot.left + group * (i as f64 + 0.5);
            if widest <= room {
                for (line, words) in wrap(name, 12.0, room).iter().enumerate() {
                    let y = top + SMALL_LINE * line as f64;
                    *out += &text("tg-tick", x, y, Anchor::Middle, words);
                    bottom = f64::max(bottom, y);
                }
            } else {
                let (x, y) = (x + 4.0, plot.bottom() + 14.0);
                let name = shorten(name, 12.0, ASLANT_MAX.min((x - 4.0) / COSINE));
                let words = text("tg-tick", 0.0, 0.0, Anchor::End, &name);
                let _ = writeln!(
                    out,
                    "<g transform=\"translate({} {}) rotate(-35)\">{}</g>",
                    number(x),
                    number(y),
                    words.trim_end()
                );
                bottom = f64::max(bottom, y + text_width(&name, 12.0) * SINE + 4.0);
            }
        }
        bottom
    }
}

//! Tests of whole figures.

use super::*;

fn series(name: &str, points: &[(f64, f64)], from_paper: bool) -> Series {
    Series {
        name: name.to_owned(),
        points: points.to_vec(),
        from_paper,
    }
}

/// Elements that are opened are closed, in the right order, and no markup is left in words.
pub fn check_markup(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, words) = piece.split_once('>').expect("every tag ends");
        assert!(!words.contains('>'), "{words}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "in {piece}");
        } else if !tag.ends_with('/') && !tag.starts_with('!') && !tag.starts_with("meta") {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn lines(x_scale: Scale) -> Figure {
    Figure {
        title: "Completion & <servers>".to_owned(),
        x_label: "servers".to_owned(),
        y_label: "time [s]".to_owned(),
        kind: Kind::Lines { x_scale },
        series: vec![
            series("fifo", &[(2.0, 3.0), (64.0, 5.0)], false),
            series("window", &[(2.0, 2.0), (64.0, 2.5)], false),
            series("window", &[(2.0, 2.2)], true),
            series("other", &[(2.0, 1.2)], true),
        ],
        note: "one-shot".to_owned(),
    }
}

fn bars(groups: &[&str]) -> Figure {
    Figure {
        kind: Kind::Bars {
            groups: groups.iter().map(|name| (*name).to_owned()).collect(),
        },
        series: vec![
            series(
                "fifo",
                &[(0.0, 3.0), (1.0, -5.0), (7.0, 1.0), (0.5, 1.0)],
                false,
            ),
            series("window", &[(0.0, 2.0), (1.0, 2.5)], false),
            series("window", &[(1.0, 2.0)], true),
        ],
        ..Figure::default()
    }
}

#[test]
fn figures_are_well_formed_and_say_everything() {
    for scale in [Scale::Linear, Scale::Log2] {
        let svg = lines(scale).svg();
        check_markup(&svg);
        for words in [
            "Completion &amp; &lt;servers&gt;",
            ">servers</text>",
            ">time [s]</text>",
            ">fifo</text>",
            ">hollow: as published</text>",
            ">other (published)</text>",
            ">one-shot</text>",
        ] {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        // Two published points, two entries of the legend.
        assert_eq!(svg.matches("class=\"tg-hollow\"").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf\""));
    }
}

#[test]
fn bars_stand_in_their_groups_only() {
    let svg = bars(&["one", "two"]).svg();
    check_markup(&svg);
    // Four bars and two entries of the legend; points without a group are not drawn.
    assert_eq!(svg.matches("<rect class=\"tg-bar\"").count(), 6);
    assert_eq!(svg.matches("class=\"tg-hollow\"").count(), 2);
    assert!(svg.contains("\u{2212}5.00</text>"));
    let many = ["a rather long name"; 40];
    let aslant = bars(&many).svg();
    check_markup(&aslant);
    assert!(aslant.contains("rotate(-35)"));
}

#[test]
fn what_cannot_be_drawn_is_left_out() {
    let mut figure = lines(Scale::Log2);
    figure.series = vec![series(
        "x",
        &[
            (f64::NAN, 1.0),
            (1.0, f64::INFINITY),
            (0.0, 1.0),
            (-4.0, 1.0),
        ],
        false,
    )];
    let svg = figure.svg();
    check_markup(&svg);
    assert!(svg.contains("no values"));
    for figure in [Figure::default(), bars(&[])] {
        let svg = figure.svg();
        check_markup(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}

#[test]
fn published_series_look_like_their_namesakes() {
    let looks = style::looks(&lines(Scale::Linear).series);
    let indices: Vec<usize> = looks.iter().map(|look| look.index).collect();
    assert_eq!(indices, [0, 1, 1, 2]);
    let twins: Vec<bool> = looks.iter().map(|look| look.twin).collect();
    assert_eq!(twins, [false, false, true, false]);
}

#[test]
fn long_lines_have_few_markers() {
    let points: Vec<(f64, f64)> = (0..1000)
        .map(|i| (f64::from(i), f64::from(i % 7)))
        .collect();
    let mut figure = lines(Scale::Linear);
    figure.series = vec![series("depth", &points, false)];
    let svg = figure.svg();
    assert!(svg.matches("class=\"tg-full\"").count() <= 25);
}

#[test]
fn the_same_figure_gives_the_same_bytes() {
    assert_eq!(lines(Scale::Log2).svg(), lines(Scale::Log2).svg());
    let fragment = lines(Scale::Log2).fragment("figure-3");
    assert!(!fragment.contains("<style>"));
    assert!(fragment.contains("id=\"figure-3-title\""));
}

//! A self-contained page of HTML with figures and tables: it loads no script, font or picture.
//! `tidegate report` writes it.

use crate::chart::{Figure, Kind, STYLE, escape};
use std::fmt::Write as _;
use tidegate_cli::table::Table;

/// A page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// Paragraphs below the title.
    pub intro: Vec<String>,
    /// What it shows, in this order.
    pub sections: Vec<Section>,
}

/// A part of a page under a heading of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// Paragraphs below the heading.
    pub text: Vec<String>,
    /// Its figures; the numbers of each can be unfolded below it.
    pub figures: Vec<Figure>,
    /// Its tables.
    pub tables: Vec<Table>,
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,'DejaVu Sans',Arial,sans-serif;max-width:50rem;margin:2rem auto;\
padding:0 1rem;color:#24292f;background:#fff}\
h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.25rem;margin-top:2.5rem}\
a{color:#0069b4}figure{margin:1.5rem 0}\
figure svg{max-width:100%;height:auto;display:block}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;font-size:.9rem;margin:1rem 0;\
font-variant-numeric:tabular-nums}\
caption{text-align:left;font-weight:600;padding:.3rem 0}\
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #dfe3e8}\
th{vertical-align:bottom}th.n,td.n{text-align:right}\
summary{cursor:pointer;color:#57606a;font-size:.9rem}\
@media (prefers-color-scheme:dark){\
body{color:#e6edf3;background:#14181d}a{color:#4ba6f0}summary{color:#9da7b1}\
th,td{border-color:#30363d}}\
@media print{details{display:none}h2{break-after:avoid}figure{break-inside:avoid}}";

/// A mark in every page, by which the program tells a page from other files.
pub const GENERATOR: &str = "<meta name=\"generator\" content=\"tidegate report\">";

impl Page {
    /// The page as a file.
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             {GENERATOR}\n\
             <meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n"
        );
        paragraphs(&mut out, &self.intro);
        self.contents(&mut out);
        let mut figures = 0;
        for (i, section) in self.sections.iter().enumerate() {
            let heading = escape(&section.heading);
            let _ = writeln!(out, "<h2 id=\"section-{}\">{heading}</h2>", i + 1);
            paragraphs(&mut out, &section.text);
            for figure in &section.figures {
                figures += 1;
                let drawn = figure.fragment(&format!("figure-{figures}"));
                let _ = writeln!(out, "<figure>\n{drawn}{}</figure>", numbers(figure));
            }
            for table in &section.tables {
                out += &html(table);
            }
        }
        out + "</body>\n</html>\n"
    }

    /// Links to the sections, where there are several.
    fn contents(&self, out: &mut String) {
        if self.sections.len() < 3 {
            return;
        }
        *out += "<nav>\n<ul>\n";
        for (i, section) in self.sections.iter().enumerate() {
            let heading = escape(&section.heading);
            let link = format!("<a href=\"#section-{}\">{heading}</a>", i + 1);
            let _ = writeln!(out, "<li>{link}</li>");
        }
        *out += "</ul>\n</nav>\n";
    }
}

/// A table of a page. A column whose cells are all numbers is set to the right.
fn html(table: &Table) -> String {
    let mut out = String::from("<div class=\"scroll\">\n<table>\n");
    if !table.caption.is_empty() {
        let _ = writeln!(out, "<caption>{}</caption>", escape(&table.caption));
    }
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let numeric: Vec<bool> = (0..table.columns.len())
        .map(|column| {
            let mut rows = table.rows.iter();
            !table.rows.is_empty() && rows.all(|row| is_number(&cell(row, column)))
        })
        .collect();
    let mut line = |kind: &str, scope: &str, cells: &[String]| {
        out += "<tr>";
        for (column, numeric) in numeric.iter().enumerate() {
            let class = if *numeric { " class=\"n\"" } else { "" };
            let words = escape(&cell(cells, column));
            let _ = write!(out, "<{kind}{scope}{class}>{words}</{kind}>");
        }
        out += "</tr>\n";
    };
    line("th", " scope=\"col\"", &table.columns);
    for row in &table.rows {
        line("td", "", row);
    }
    out + "</table>\n</div>\n"
}

/// Whether a cell is a number, perhaps with a sign or a percent sign; an empty one may be.
fn is_number(cell: &str) -> bool {
    let digits = cell.trim().trim_end_matches(['%', ' ']);
    let digits = digits.trim_start_matches(['+', '-', '\u{2212}']);
    digits.is_empty()
        || (digits.parse::<f64>().is_ok() && digits.contains(|c: char| c.is_ascii_digit()))
}

fn paragraphs(out: &mut String, text: &[String]) {
    for words in text {
        let _ = writeln!(out, "<p>{}</p>", escape(words));
    }
}

/// The points of a figure as a table: a row for each x, a column for each series.
fn numbers(figure: &Figure) -> String {
    let mut xs: Vec<f64> = Vec::new();
    for series in &figure.series {
        xs.extend(series.points.iter().map(|point| point.0));
    }
    xs.sort_by(f64::total_cmp);
    xs.dedup_by(|a, b| a.total_cmp(b).is_eq());
    let name = |x: f64| match &figure.kind {
        Kind::Bars { groups } if x >= 0.0 && x.floor() == x => {
            groups.get(x as usize).cloned().unwrap_or_default()
        }
        _ => six_digits(x),
    };
    let heads = figure.series.iter().map(|series| {
        let published = if series.from_paper {
            " (published)"
        } else {
            ""
        };
        format!("{}{published}", series.name)
    });
    let row = |x: &f64| {
        let values = figure.series.iter().map(|series| {
            let mut points = series.points.iter();
            let point = points.find(|point| point.0.total_cmp(x).is_eq());
            point.map_or(String::new(), |point| six_digits(point.1))
        });
        [name(*x)].into_iter().chain(values).collect()
    };
    let table = Table {
        caption: String::new(),
        columns: [figure.x_label.clone()].into_iter().chain(heads).collect(),
        rows: xs.iter().map(row).collect(),
    };
    format!(
        "<details><summary>Numbers: {}</summary>\n{}</details>\n",
        escape(&figure.y_label),
        html(&table)
    )
}

/// A value with at most six significant digits.
fn six_digits(value: f64) -> String {
    let rounded = format!("{value:.5e}").parse().unwrap_or(value);
    format!("{rounded}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Scale, Series, check_markup};

    fn page() -> Page {
        let figure = Figure {
            title: "a <b>".to_owned(),
            x_label: "servers".to_owned(),
            kind: Kind::Lines {
                x_scale: Scale::Log2,
            },
            series: vec![Series {
                name: "fifo".to_owned(),
                points: vec![(2.0, 0.5), (4.0, 1.25)],
                from_paper: true,
            }],
            ..Figure::default()
        };
        let section = Section {
            heading: "R&D".to_owned(),
            text: vec!["One.".to_owned()],
            figures: vec![figure.clone(), figure],
            tables: vec![Table {
                caption: "T".to_owned(),
                columns: vec!["policy".to_owned(), "gain".to_owned()],
                rows: vec![
                    vec!["fifo".to_owned(), "-4.5 %".to_owned(), "beyond".to_owned()],
                    vec!["<window>".to_owned()],
                ],
            }],
        };
        Page {
            title: "Report".to_owned(),
            intro: vec!["Intro.".to_owned()],
            sections: vec![section; 3],
        }
    }

    #[test]
    fn a_page_is_well_formed_and_needs_nothing_else() {
        let html = page().html();
        check_markup(&html);
        assert!(html.contains("<h2 id=\"section-3\">R&amp;D</h2>"));
        assert!(html.contains("<td>&lt;window&gt;</td><td class=\"n\"></td>"));
        assert!(html.contains("<td class=\"n\">-4.5 %</td>"));
        assert!(html.contains("<td class=\"n\">4</td><td class=\"n\">1.25</td>"));
        assert!(!html.contains("beyond"));
        let links = html.replace("http://www.w3.org/2000/svg", "");
        for outside in [
            "http:", "https:", "<script", "<img", "<link", "@import", "src=",
        ] {
            assert!(!links.contains(outside), "{outside}");
        }
    }

    #[test]
    fn ids_are_unique() {
        let html = page().html();
        let mut ids: Vec<&str> = html
            .split(" id=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!(count > 6);
    }

    #[test]
    fn values_are_rounded() {
        let values = [(0.1 + 0.2, "0.3"), (-4.0, "-4"), (1_234_567.8, "1234570")];
        for (value, text) in values {
            assert_eq!(six_digits(value), text);
        }
        assert_eq!(six_digits(f64::NAN), "NaN");
    }

    #[test]
    fn numbers_are_told_from_words() {
        for number in ["1", "-4.5 %", "+3", "\u{2212}2.5", "1e6", ""] {
            assert!(is_number(number), "{number}");
        }
        for word in ["fifo", "1 MiB", "inf", "nan", "1/2"] {
            assert!(!is_number(word), "{word}");
        }
    }
}

//! The page of documentation that `bench cluster --write` makes.

use super::Nodes;
use super::report::{PROGRAMS, Report};
use crate::bench::markdown;
use crate::bench::performance::machine;
use std::path::Path;

/// The page.
pub fn page(nodes: &Nodes, file: &Path, reports: &[Report]) -> String {
    let mut text = format!(
        "# Coordination on a cluster\n\n\
         Written by `tidegate bench cluster --write {}`; do not edit it. `tests/cluster/bench` \
         brings up such a cluster on one machine and\nruns it; a site can run the command on a \
         cluster of its own.\n\nMeasured by tidegate {} on {}.\n\n",
        file.display(),
        env!("CARGO_PKG_VERSION"),
        machine::words(&nodes.common.dir),
    );
    for line in &nodes.about {
        text += &format!("- {line}\n");
    }
    text += "\n*none* is the back end's own mount on the compute nodes, without Tidegate; *fifo* \
             and *window* are Tidegate's mount on them,\nwith the forwarders' policy changed at \
             run time. A completion is the time from the common start to a program's end. \
             Slowdown: a\ncompletion by what the program takes alone on the back end. Fairness: \
             Jain's index of the programs' speeds (1 / slowdown).\n";
    for report in reports {
        text += &report.section();
    }
    text += &protocol(nodes);
    text
}

impl Report {
    /// The results of one load.
    fn section(&self) -> String {
        let mut text = format!("\n## Files: {}\n\n", self.nodes.load_words());
        text += &format!("{}\n\n", self.words());
        text += &markdown(&Report::heading(), &self.rows());
        text += &format!("\n{}\n\n", self.notes());
        text += "Each program's completion, medians:\n\n";
        text += &markdown(&PROGRAMS, &self.program_rows());
        text += "\nWhether the run was valid:\n\n";
        for claim in &self.claims {
            text += &format!("- {}: {}\n", claim.verdict(), claim.text);
        }
        text
    }
}

fn protocol(nodes: &Nodes) -> String {
    let before = match &nodes.before {
        Some(command) => format!("Before each turn `{command}` ran."),
        None => "No caches of the back end's servers were emptied between turns.".to_string(),
    };
    format!(
        "\n## How to read it\n\n\
         - The work of each program is fixed and it leaves when it is done. So an order can \
         shorten the mean completion, by letting some\n  programs end early at no cost to the \
         last; under endless closed loops it could not (Little's law).\n\
         - Where each program has one request at a time, fifo lets them take turns: the small are \
         done early by themselves, and where all\n  are alike all end late. window serves them \
         in an order of its own for each window, which does not know their sizes.\n\
         - The same files are read in all turns, and by all ways at the same places of the back \
         end. {before}\n\
         - Without Tidegate each program has its own request at the back end, so that up to {} are \
         there at once; through Tidegate at most\n  {} for each forwarder. A back end that gains \
         from many requests at once does so only without Tidegate, or with a larger `--depth`.\n",
        nodes.programs, nodes.depth
    )
}

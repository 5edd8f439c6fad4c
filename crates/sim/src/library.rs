//! The scenarios that come with the product, by name: the files of `scenarios/`.

use crate::scenario::{Scenario, ScenarioError};

macro_rules! library {
    ($($name:literal),+ $(,)?) => {
        /// Names and texts.
        pub const SCENARIOS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),+
        ];
    };
}

library! {
    "agios-2013-fig3",
    "agios-2013-fig5",
    "agios-2013-fig6",
    "agios-2013-fig7",
    "agios-2013-overhead",
    "agios-2013-table",
    "iofsl-2010-fig6",
    "iofsl-2010-fig8",
    "iofsl-2010-fig11",
    "iofsl-2010-btio",
    "iofsl-2010-direct",
    "liu-2013-fig2",
    "liu-2013-fig4",
    "liu-2013-fig4-even",
    "liu-2013-fig5",
    "liu-2013-fig6",
    "liu-2013-table1",
    "scale-1024",
    "shares-on-disks",
    "sizes-checkpoint",
    "sizes-log-normal",
    "song-2011-as-printed",
    "song-2011-fig3",
    "song-2011-fig5",
    "song-2011-fig6",
    "song-2011-fig7",
    "song-2011-fig8",
    "vpfs-2013-fig1",
    "vpfs-2013-fig3",
    "vpfs-2013-fig4",
    "vpfs-2013-fig5",
    "vpfs-shares",
    "vpfs-slo",
    "vpfs-slo-depths",
    "when-clocks",
    "when-depth",
    "when-forwarders",
    "when-places",
    "when-start-spread",
}

/// The scenario of a name; None: there is none.
pub fn find(name: &str) -> Option<Result<Scenario, ScenarioError>> {
    let (name, text) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
    Some(Scenario::parse(text, &format!("{name}.toml"), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_is_in_the_library_and_every_one_is_right() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let files = std::fs::read_dir(folder).expect("the folder is there");
        let names = files.map(|file| file.expect("readable").file_name());
        let files: BTreeSet<String> = names
            .map(|name| name.to_string_lossy().trim_end_matches(".toml").to_string())
            .collect();
        let known = SCENARIOS.iter().map(|(name, _)| name.to_string());
        assert_eq!(known.collect::<BTreeSet<_>>(), files);
        for (name, _) in SCENARIOS {
            if let Err(error) = find(name).expect("it is known") {
                panic!("{error}");
            }
        }
    }
}

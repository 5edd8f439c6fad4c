//! The section `[ownership]`: how forwarders keep the seats of an export apart.

use super::ConfigError;
use super::source::Section;

/// How forwarders keep seats apart, and what a seat's reply table outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnershipOptions {
    /// All forwarders of the export run on this node and use the same mount of the back end.
    pub one_node: bool,
    /// What the reply table outlives; None: as the back end demands.
    pub durability: Option<Durability>,
    /// How long a seat stays its holder's after the last time that the holder said so, ms.
    pub ttl_ms: u32,
    /// How often a forwarder tries the back end with another, s; 0: only when it starts.
    pub probe_s: u32,
}

/// What a seat's reply table outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The forwarder's process: the table lies in the page cache of its node.
    Process,
    /// The forwarder's node: an intent is on the back end before the operation takes effect.
    Node,
}

/// Reads the section.
pub(super) fn ownership(mut section: Section) -> Result<OwnershipOptions, ConfigError> {
    let durability = match section.text("durability")? {
        None => None,
        Some((word, _)) if word == "process" => Some(Durability::Process),
        Some((word, _)) if word == "node" => Some(Durability::Node),
        Some((word, place)) => {
            let what = format!("durability = \"{word}\" must be one of process, node");
            return Err(ConfigError::new(&place, what));
        }
    };
    let options = OwnershipOptions {
        one_node: section.bool("one_node", false)?,
        durability,
        ttl_ms: section.number("ttl_ms", 8000, (500, 600_000))? as u32,
        probe_s: section.number("probe_s", 60, (0, 86_400))? as u32,
    };
    section.finish()?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Source};
    use super::*;

    fn parse(text: &str) -> Result<OwnershipOptions, String> {
        let good = "export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n";
        let source =
            Source::parse(&format!("{good}{text}"), "f.toml").map_err(|e| e.to_string())?;
        let config = Config::from_source(source).map_err(|error| error.to_string())?;
        Ok(config.ownership)
    }

    #[test]
    fn the_back_end_decides_unless_the_file_does() {
        let none = parse("").expect("it is valid");
        assert_eq!(
            (none.one_node, none.durability, none.ttl_ms, none.probe_s),
            (false, None, 8000, 60)
        );
        let text =
            "[ownership]\none_node = true\ndurability = \"node\"\nttl_ms = 500\nprobe_s = 0\n";
        let all = parse(text).expect("it is valid");
        let node = Some(Durability::Node);
        assert_eq!(
            (all.one_node, all.durability, all.ttl_ms, all.probe_s),
            (true, node, 500, 0)
        );
    }

    #[test]
    fn wrong_words_are_refused() {
        let error = parse("[ownership]\ndurability = \"disk\"\n").expect_err("must be refused");
        assert!(error.starts_with("f.toml:4: durability = \"disk\" must be one of process, node"));
        let error = parse("[ownership]\nttl_ms = 3\n").expect_err("must be refused");
        assert!(error.starts_with("f.toml:4: ttl_ms = 3 must be a number from 500"));
    }
}

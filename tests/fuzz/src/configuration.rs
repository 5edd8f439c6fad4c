//! Configurations, lists of forwarders, secrets and what DNS says: each is read or refused.

use crate::Draw;
use std::path::Path;
use tidegate_cli::state::ClientFile;
use tidegate_client::Options;
use tidegate_client::collective::{Hint, Hints};
use tidegate_client::list::{addresses_of_answer, addresses_of_text};
use tidegate_client::shortcut::Answer;
use tidegate_net::{Address, Secret, SiteSecret};
use tidegate_sched::{CostModel, Rate, Scheduler};
use tidegate_server::config::{self, Config, Source};
use tidegate_wire::Grant;

pub(super) fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let kind = draw.u8() % 10;
    let bytes = draw.rest();
    if kind > 5 {
        return read_bytes(kind, bytes);
    }
    let text = &String::from_utf8_lossy(bytes);
    match kind {
        0 => {
            let source = Source::parse(text, "fuzz");
            let Ok(config) = source.and_then(Config::from_source) else {
                return;
            };
            assert!(config.forwarder < config.seats && config.stripe.is_power_of_two());
            // What the configuration lets through, the scheduler takes.
            Scheduler::new(&config.scheduler).expect("it is checked");
        }
        1 => {
            let now = tidegate_sched::Options::default();
            if let Ok(options) = config::scheduler_options(text, &now, None) {
                Scheduler::new(&options).expect("it is checked");
            }
        }
        2 => {
            let _ = config::rules(text, "fuzz");
        }
        3 => {
            let _ = ClientFile::of_text(text, Path::new("fuzz"));
            let _ = addresses_of_text(text);
        }
        4 => {
            let _ = Options::from_text(text);
            // An address that is read is written the same.
            if let Ok(address) = text.parse::<Address>() {
                assert_eq!(address.to_string(), **text);
            }
        }
        _ => {
            let _ = CostModel::parse(text);
            let _ = Rate::parse(text);
            let _ = config::parse_bytes(text);
        }
    }
}

fn read_bytes(kind: u8, bytes: &[u8]) {
    match kind {
        6 => {
            if let Ok(addresses) = addresses_of_answer("_tidegate._tcp.example.org", bytes) {
                assert!(!addresses.is_empty());
                for address in addresses {
                    let read = address.parse::<Address>();
                    assert!(read.is_ok_and(|it| it.is_remote()), "{address}");
                }
            }
        }
        7 => {
            let _ = SiteSecret::of_bytes(bytes.to_vec());
            if let Ok(secret) = Secret::of_bytes(bytes.to_vec()) {
                let text = secret.to_text();
                let again = Secret::of_bytes(text.trim_ascii_end().into());
                assert_eq!(again.expect("it was just written").to_text(), text);
            }
        }
        8 => {
            if let Ok(grant) = Grant::parse(bytes) {
                assert_eq!(grant.to_string().as_bytes(), bytes);
            }
        }
        _ => {
            if let Some(answer) = Answer::decode(bytes)
                && let Some(again) = answer.encode()
            {
                let again = Answer::decode(&again).expect("it was just written");
                // A path that is too long is left out.
                let path = again.path.clone();
                assert!(path == answer.path || path.is_empty());
                assert_eq!(again, Answer { path, ..answer });
            }
            if let Some(hint) = Hint::decode(bytes) {
                let mut hints = Hints::default();
                hints.publish(hint);
                hints.find(hint.first, 1);
                hints.find(u64::MAX, u64::MAX);
                hints.end(hint.collective.operation);
                assert!(hints.is_empty(), "a hint stays behind its end");
            }
        }
    }
}

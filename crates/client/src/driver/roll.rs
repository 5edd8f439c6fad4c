//! Asks the forwarders of a list who they are, before the first session. [`list`](crate::list)
//! checks, orders and completes the list with their answers.

use super::Host;
use super::start::core_options;
use crate::core::{Application, CoreOptions, Told};
use crate::list::{self, Asked, Whole};
use crate::options::{ConnectError, Options};
use crate::wire::ExportId;
use std::time::{Duration, Instant};

const DAY: Duration = Duration::from_secs(86_400);

/// How long the client waits for forwarders without an answer once another has answered. A node
/// that is down must not keep a mount from starting.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// Pause before asking again for addresses that the answering forwarders do not know yet:
/// forwarders that were started together learn of each other within a second or two.
const LEARN_WAIT: Duration = Duration::from_millis(250);

impl Host {
    /// Asks the forwarders who they are, starts the I/O thread and waits for the first session.
    pub(crate) fn start(options: Options) -> Result<Host, ConnectError> {
        if options.forwarders.is_empty() {
            return Err(ConnectError::NoAddress);
        }
        let (options, left_out) = ask_all(options)?;
        let mut host = Host::set_up(&options, core_options(&options)?)?;
        host.name_application(Application {
            name: options.application.clone(),
            job: options.job.clone(),
            project: options.project.clone(),
            caller: None,
        });
        host.root = host
            .shared
            .first_session(&options.forwarders, options.connect_timeout)?;
        host.reached = options.to_text();
        host.left_out = left_out;
        Ok(host)
    }
}

/// The options with all forwarders of the export, in the order of the layout; and the addresses of
/// the list that are left out, with the reason, one line each.
fn ask_all(options: Options) -> Result<(Options, Vec<String>), ConnectError> {
    if options.export.is_some() {
        // The process that wrote the line has asked the forwarders.
        return Ok((options, Vec::new()));
    }
    let named = list::read(&options.forwarders)?;
    let until = Instant::now() + options.connect_timeout.min(DAY);
    loop {
        match once(&options, &named, until) {
            Err(ConnectError::Unknown(_)) if Instant::now() + LEARN_WAIT < until => {
                std::thread::sleep(LEARN_WAIT);
            }
            Err(error) => return Err(error),
            Ok((whole, export)) => {
                let options = Options {
                    forwarders: whole.forwarders,
                    export: Some(export),
                    ..options
                };
                return Ok((options, whole.left_out));
            }
        }
    }
}

/// Asks the forwarders of the list, then those that these name.
fn once(
    options: &Options,
    named: &[String],
    until: Instant,
) -> Result<(Whole, ExportId), ConnectError> {
    let asked = ask(options, named.to_vec(), until)?;
    let checked = list::check(&asked)?;
    let export = checked.export;
    let missing = checked.missing().into_iter();
    let learned: Vec<String> = missing.flat_map(|(_, addresses)| addresses).collect();
    // The answers of these forwarders are checked like those of the list.
    let learned = match learned.is_empty() {
        true => Vec::new(),
        false => ask(options, learned, Instant::now() + SILENCE_MAX)?,
    };
    let whole = checked.complete(&learned)?;
    for (index, address) in whole.forwarders.iter().enumerate() {
        let mut all = asked.iter().chain(&learned);
        let found = all.find(|asked| asked.address == *address);
        if let Some(asked) = found.filter(|asked| !matches!(asked.told, Told::Here(_))) {
            tracing::warn!(
                forwarder = index,
                %address,
                trouble = list::trouble_of(asked),
                "a forwarder is down; it is checked when it comes"
            );
        }
    }
    Ok((whole, export))
}

/// Asks all of them at once. Ends when all have answered or refused, or when one has answered and
/// the others had their time; where none answers, at `until`.
fn ask(
    options: &Options,
    addresses: Vec<String>,
    until: Instant,
) -> Result<Vec<Asked>, ConnectError> {
    let options = Options {
        forwarders: addresses,
        // The roll call transfers no payload.
        shared_memory_bytes: 0,
        ..options.clone()
    };
    let core = CoreOptions {
        asks: true,
        ..core_options(&options)?
    };
    let host = Host::set_up(&options, core)?;
    let asked = host.shared.told(&options.forwarders, until, SILENCE_MAX);
    host.shutdown();
    asked
}

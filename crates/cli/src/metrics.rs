//! `tidegate metrics`: what the forwarders do, as OpenMetrics, for Prometheus and programs like it.
//!
//! It is a process of its own, beside the forwarders or elsewhere: they listen to nobody more, and
//! who collects numbers gets no right at them.

mod busiest;
mod families;
mod http;
mod page;

use crate::fail::Fail;
use crate::names;
use crate::stat::health::Wrong;
use crate::stat::{self, ANSWER_MAX};
use crate::state::ClientFile;
use crate::target::Target;
use crate::{errln, outln, output};
use busiest::Uses;
use http::Answer;
use page::Shown;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_client::Client;
use tidegate_server::config::Address;

/// What was found at a look is used again for so long: several who ask cost no more than one.
const SAME_MAX: Duration = Duration::from_secs(1);

/// Serve what the forwarders do as OpenMetrics, over HTTP.
#[derive(clap::Args)]
pub struct Metrics {
    #[command(flatten)]
    target: Target,
    /// Where to listen: an address of this node and a port. There is no encryption, and everybody
    /// who reaches it is answered
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9469")]
    listen: SocketAddr,
    /// Applications of each forwarder with numbers of their own: those that use its device most of
    /// late
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u16).range(0..=1000))]
    applications: u16,
}

impl Metrics {
    /// Serves until SIGTERM or SIGINT.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(Fail::runtime)?;
        let listener = TcpListener::bind(self.listen);
        let listener =
            listener.map_err(|error| Fail::usage(format!("--listen {}: {error}", self.listen)))?;
        let address = listener.local_addr().map_err(Fail::runtime)?;
        // What is wrong with the command line is told now. Forwarders may come later.
        check(&self.target.find()?)?;
        let asked = Asked::new(self.target, usize::from(self.applications));
        let _ = asked.look();
        let serving = std::thread::Builder::new().name("accept".to_string());
        let answer = Arc::new(move |path: &str| asked.answer(path));
        let serving = serving.spawn(move || http::serve(&listener, &answer));
        serving.map_err(Fail::runtime)?;
        outln!("serving http://{address}/metrics");
        output::flush();
        signals.forever().next();
        Ok(ExitCode::SUCCESS)
    }
}

/// Checks what does not depend on whether forwarders answer: that the files can be read that are
/// named, and that addresses are some.
fn check(found: &ClientFile) -> Result<(), Fail> {
    let readable = |path: &Path| {
        let file = File::open(path);
        file.map_err(|error| Fail::usage(format!("{}: {error}", path.display())))
    };
    if let Some(path) = &found.secret_file {
        readable(path)?;
    }
    for address in &found.forwarders {
        match address.strip_prefix('@') {
            // Those of DNS may come later.
            Some(name) if name.starts_with('_') && !name.contains('/') => {}
            Some(path) => drop(readable(Path::new(path))?),
            None => drop(
                address
                    .parse::<Address>()
                    .map_err(|error| Fail::usage(format!("address of a forwarder: {error}")))?,
            ),
        }
    }
    Ok(())
}

/// Whom to ask, and what was said last.
struct Asked {
    target: Target,
    applications_max: usize,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    client: Option<(Arc<Client>, Vec<String>)>,
    /// Of each forwarder.
    uses: Vec<Uses>,
    looked: Option<(Instant, Arc<Look>)>,
}

/// What was found at one look.
struct Look {
    shown: Vec<Shown>,
    /// What is wrong, a line each; the first one if no forwarder could be asked.
    wrong: Result<Vec<Wrong>, String>,
}

impl Asked {
    fn new(target: Target, applications_max: usize) -> Asked {
        let last = Mutex::default();
        Asked {
            target,
            applications_max,
            last,
        }
    }

    /// The answer to a GET of this path.
    fn answer(&self, path: &str) -> Answer {
        match path {
            "/metrics" => {
                let look = self.look();
                let wrong = look.wrong.as_deref().unwrap_or_default();
                Answer::open_metrics(page::text(&look.shown, wrong))
            }
            "/healthy" => Answer::text(200, "this program answers\n"),
            "/ready" => match &self.look().wrong {
                Ok(wrong) if wrong.is_empty() => Answer::text(200, "ready\n"),
                Ok(wrong) => Answer::text(503, &stat::lines(wrong)),
                Err(why) => Answer::text(503, &format!("{why}\n")),
            },
            "/" => Answer::text(
                200,
                "/metrics: what the forwarders do, as OpenMetrics\n\
                 /ready: 200 if each forwarder serves its own seat without trouble, else 503\n\
                 /healthy: 200 while this program answers\n",
            ),
            _ => Answer::text(404, "not found: there are /metrics, /ready and /healthy\n"),
        }
    }

    /// What the forwarders say, or said a moment ago. Whoever asks meanwhile waits for the same.
    fn look(&self) -> Arc<Look> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, look)) = &last.looked
            && at.elapsed() < SAME_MAX
        {
            return Arc::clone(look);
        }
        let look = Arc::new(self.look_now(&mut last));
        let why = look.wrong.as_ref().err();
        let before = last.looked.as_ref().map(|(_, before)| &before.wrong);
        match why {
            Some(why) if !matches!(before, Some(Err(before)) if before == why) => {
                errln!("tidegate: {why}; asking again at each look");
            }
            None if matches!(before, Some(Err(_))) => errln!("tidegate: forwarders answer"),
            _ => {}
        }
        // As of its end: a look takes seconds where somebody is silent.
        last.looked = Some((Instant::now(), Arc::clone(&look)));
        look
    }

    fn look_now(&self, last: &mut Last) -> Look {
        let client = match last.client.take() {
            Some(client) => Ok(client),
            None => {
                let connected = self.target.connect(Some(ANSWER_MAX));
                connected.map(|(found, client)| (client, found.forwarders))
            }
        };
        let (client, addresses) = match client {
            Ok(client) => client,
            Err(fail) => {
                return Look {
                    shown: Vec::new(),
                    wrong: Err(fail.message),
                };
            }
        };
        let mut states = stat::states(&client, &addresses);
        // Where nobody answers, it is found out anew who the forwarders are: perhaps other ones.
        if states.iter().any(|state| !state["error"].is_string()) {
            last.client = Some((client, addresses));
        } else {
            client.shutdown();
        }
        if let Some(file) = self.target.names_file() {
            stat::name_applications(&mut states, &names::read(&file));
        }
        let wrong = stat::wrong(&states, Vec::new());
        last.uses.resize_with(states.len(), Uses::default);
        let uses = last.uses.iter_mut().zip(states);
        let shown = uses.map(|(uses, state)| {
            let applications = match state["error"].is_string() {
                true => Vec::new(),
                false => uses.look(&state, self.applications_max),
            };
            (state, applications)
        });
        Look {
            shown: shown.collect(),
            wrong: Ok(wrong),
        }
    }
}

//! `tidegate metrics`: what the forwarders do, as OpenMetrics, for Prometheus and programs like it.
//!
//! It is a process of its own, beside the forwarders or elsewhere: they listen to nobody more, and
//! who collects numbers gets no right at them.

mod families;
mod http;
mod page;

use crate::fail::Fail;
use crate::names;
use crate::stat::{self, ANSWER_MAX};
use crate::target::Target;
use crate::{errln, outln, output};
use http::Answer;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_client::Client;

/// Answers of forwarders are used again for so long: several who ask cost no more than one.
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
    /// Applications of each forwarder with numbers of their own: those with the most device time
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
        let found = self.target.find()?;
        let asked = Asked::new(self.target, usize::from(self.applications));
        if let Err(fail) = asked.look() {
            let first = found.forwarders.first().map_or("", String::as_str);
            errln!(
                "tidegate: {first}: {}; asking again at each look",
                fail.message
            );
        }
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

/// Whom to ask, and what was said last.
struct Asked {
    target: Target,
    applications_max: usize,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    client: Option<(Arc<Client>, Vec<String>)>,
    looked: Option<(Instant, Arc<Look>)>,
}

/// What the forwarders said at one look.
struct Look {
    states: Vec<Value>,
    wrong: Vec<stat::health::Wrong>,
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
            "/metrics" => self.metrics(),
            "/healthy" => Answer::text(200, "this program answers\n"),
            "/ready" => self.ready(),
            "/" => Answer::text(
                200,
                "/metrics: what the forwarders do, as OpenMetrics\n\
                 /ready: 200 if each forwarder serves its own seat without trouble, else 503\n\
                 /healthy: 200 while this program answers\n",
            ),
            _ => Answer::text(404, "not found: there are /metrics, /ready and /healthy\n"),
        }
    }

    fn metrics(&self) -> Answer {
        let text = match self.look() {
            Ok(look) => page::text(&look.states, &look.wrong, self.applications_max),
            // No forwarder has ever answered, so it is not known how many there are.
            Err(_) => page::text(&[], &[], self.applications_max),
        };
        Answer::open_metrics(text)
    }

    fn ready(&self) -> Answer {
        match self.look() {
            Ok(look) if look.wrong.is_empty() => Answer::text(200, "ready\n"),
            Ok(look) => Answer::text(503, &stat::lines(&look.wrong)),
            Err(fail) => Answer::text(503, &format!("{}\n", fail.message)),
        }
    }

    /// What the forwarders say, or said a moment ago. Whoever asks meanwhile waits for the same.
    fn look(&self) -> Result<Arc<Look>, Fail> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, look)) = &last.looked
            && at.elapsed() < SAME_MAX
        {
            return Ok(Arc::clone(look));
        }
        if last.client.is_none() {
            let (found, client) = self.target.connect(Some(ANSWER_MAX))?;
            last.client = Some((client, found.forwarders));
        }
        let (client, addresses) = last.client.as_ref().expect("it was just made");
        let mut states = stat::states(client, addresses);
        if let Some(file) = self.target.names_file() {
            stat::name_applications(&mut states, &names::read(&file));
        }
        let wrong = stat::wrong(&states, Vec::new());
        let look = Arc::new(Look { states, wrong });
        last.looked = Some((Instant::now(), Arc::clone(&look)));
        Ok(look)
    }
}

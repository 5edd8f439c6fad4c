//! Runs a [`Server`] as a daemon: sets up the log, the pid file and signals.

use crate::config::{Config, LogFormat, LogLevel, LogOptions, Munge};
use crate::forwarder_loop::Stop;
use crate::pid_file::PidFile;
use crate::rights;
use crate::sandbox::{self, Held};
use crate::start::{Server, StartError};
use crate::storage::{leave_node_memory, prepare_process};
use crate::thread_rights::{Work, keep_for};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_net::{munge, witness};
use tracing::{Level, error, info, warn};

/// How long a start may take. Trials with other forwarders may take 90 s of it. Calls to a file
/// system that does not answer have no limit of their own.
const START_MAX: Duration = Duration::from_secs(150);

/// Serves until SIGTERM or SIGINT, and then finishes the accepted requests. True if they were
/// finished in time. A second signal ends the process at once, and so does a signal before it
/// serves. If the process that looks at peers ends, this one does, too, in order and with an error.
/// A start that takes longer than 150 s ends the process. (Rust's start-up code ignores SIGPIPE.)
pub fn serve(config: &Config) -> Result<bool, StartError> {
    log_to_stderr(&config.log);
    prepare_process();
    let looks = sandbox::start_witness(config);
    rights::give_up_unneeded(config, looks);
    let (started, starts) = channel::<()>();
    let export = config.export.display().to_string();
    // The only thread that is not confined; it ends before the first client comes.
    let watching = thread("start", move || {
        watch_start(&starts, START_MAX, || {
            error!(
                "export {export}: the start has not ended after {} s: the file system does not \
                 answer; see that it works, then start this forwarder again",
                START_MAX.as_secs()
            );
            end_at_once(1);
        });
    })?;
    if config.munge == Munge::On {
        // The sandbox lets the usual places be read alone. An error is told by the start itself.
        let _ = munge::Munge::load();
    }
    let held = sandbox::confine_forwarder(config, looks);
    let serving = heed_signals()?;
    let server = Server::bind(config)?;
    drop::<Sender<()>>(started);
    let _ = watching.join();
    let _ = serving.set(server.stop());
    held.iter().for_each(Held::tell);
    let pid_file = config.pid_file.as_deref().map(PidFile::write).transpose();
    let pid_file = pid_file.map_err(StartError::system("writing the pid file"))?;
    let listen: Vec<_> = server.addresses().iter().map(ToString::to_string).collect();
    info!(
        forwarder = config.forwarder,
        export = %config.export.display(),
        listen = listen.join(" "),
        policy = %server.policy(),
        "serving"
    );
    let ended = server.run_alone(true);
    if let Some(pid_file) = pid_file {
        pid_file.remove();
    }
    // A thread that waits for the back end may still have the export.
    drop(leave_node_memory());
    let in_time = ended?;
    if let Some(why) = unwatched() {
        return Err(StartError::Stopped(std::io::Error::other(why)));
    }
    info!(in_time, "stopped");
    Ok(in_time)
}

/// From now on SIGTERM and SIGINT end the forwarder, and so does the end of the process that looks
/// at peers. What is returned must be filled when there is something to stop; until then each of
/// them ends the process at once.
fn heed_signals() -> Result<Arc<OnceLock<Stop>>, StartError> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGCHLD]);
    let mut signals = signals.map_err(StartError::system("signal handlers"))?;
    let serving = Arc::new(OnceLock::<Stop>::new());
    let stop = serving.clone();
    thread("signals", move || {
        keep_for(Work::Nothing);
        let (mut asked, mut told) = (false, false);
        // The process may have ended before its signal was heeded.
        for signal in std::iter::once(SIGCHLD).chain(signals.forever()) {
            match signal {
                SIGCHLD => {
                    if let Some(why) = unwatched()
                        && !std::mem::replace(&mut told, true)
                    {
                        error!("{why}");
                        stop.get().map_or_else(|| end_at_once(1), Stop::ask);
                    }
                }
                _ if std::mem::replace(&mut asked, true) => {
                    warn!("second signal: leaving with requests unfinished");
                    end_at_once(1);
                }
                _ => match stop.get() {
                    Some(stop) => stop.ask(),
                    None => {
                        info!("stopped before it served");
                        end_at_once(0);
                    }
                },
            }
        }
    })?;
    Ok(serving)
}

/// Why this forwarder must not go on: nobody looks at peers any more, so it would refuse root's
/// programs. No other process can be started by one that is confined.
fn unwatched() -> Option<String> {
    let how = witness::ended()?;
    Some(format!(
        "tidegate-peers, the process of this forwarder that looks at peers with uid 0, has ended \
         {how}; start the forwarder again"
    ))
}

/// Ends the process without its destructors, and leaves nothing in the node's memory.
fn end_at_once(code: i32) -> ! {
    let _left = leave_node_memory();
    std::process::exit(code)
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    let builder = std::thread::Builder::new().name(name.to_string());
    let spawned = builder.spawn(work);
    spawned.map_err(StartError::system("starting a thread"))
}

/// Waits until the start has ended, with whatever result. Calls `late` if that takes longer than
/// `limit`.
fn watch_start(starts: &Receiver<()>, limit: Duration, late: impl FnOnce()) {
    if starts.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
        late();
    }
}

/// Logs to stderr, unless this process has a logger already.
pub fn log_to_stderr(options: &LogOptions) {
    let level = match options.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    // Refused when a program that embeds the server has set its own.
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(std::io::stderr);
    let _ = match options.format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_late_only_if_it_has_not_ended() {
        let (started, starts) = channel();
        let mut late = false;
        watch_start(&starts, Duration::from_millis(20), || late = true);
        assert!(late);
        drop(started);
        watch_start(&starts, Duration::from_secs(60), || panic!("it has ended"));
    }
}

//! Chooses the storage (threads, io_uring or an emulated device) by configuration and back end.

use super::StartError;
use crate::backend::{Backend, is_needed_alone};
use crate::config::Config;
use crate::config::{Engine, Io};
use crate::storage::{
    Emulated, ExportOptions, Fence, PoolOptions, PosixFiles, Slots, Storage, ThreadPool, Uring,
    UringOptions, UringRefused, Wake,
};
use tidegate_forward::StorageFacts;
use tracing::{info, warn};

/// The storage, and the facts about it that `stat` and the log show.
pub(super) struct Chosen {
    pub(super) storage: Box<dyn Storage>,
    pub(super) facts: StorageFacts,
}

/// Makes the storage that the configuration asks for, with so many threads at most, which wakes the
/// forwarder's loop. Logs what was chosen.
pub(super) fn choose(
    (config, threads_max): (&Config, u32),
    export: &ExportOptions,
    (files, slots, fence): (&PosixFiles, &Slots, &Fence),
    wake: Wake,
) -> Result<Chosen, StartError> {
    let options = PoolOptions {
        threads: config.threads.min(threads_max),
        // Room for the jobs of all sessions, and for those of the forwarder itself.
        queued_max: config.sessions_max as usize * config.credits as usize + 4096,
        faults: export.faults.clone(),
        fence: fence.clone(),
    };
    let io = io(config, files)?;
    let said = |engine, why: String| {
        let io = match io {
            Io::Buffered => "buffered",
            Io::Direct => "direct",
        };
        info!("storage: {io} I/O by {engine}: {why}");
        let why = why.into();
        StorageFacts { io, engine, why }
    };
    let by_threads = |why: String| -> Result<Chosen, StartError> {
        let pool = ThreadPool::new(files, slots, &options, wake.clone());
        Ok(Chosen {
            storage: Box::new(pool.map_err(StartError::system("starting a thread"))?),
            facts: said("threads", why),
        })
    };
    if let Some(device) = &config.device {
        let layout = config.layout();
        let emulated = Emulated::new(files, slots, &options, device, layout, wake.clone())?;
        return Ok(Chosen {
            storage: Box::new(emulated),
            facts: said("threads", "the emulated device works with them".to_string()),
        });
    }
    if files.bypasses() {
        return by_threads("past the page cache only they take any place and length".to_string());
    }
    match (io, config.storage.engine) {
        (Io::Buffered, _) => by_threads("for the page cache they are the fastest".to_string()),
        (Io::Direct, Engine::Threads) => by_threads("as configured".to_string()),
        (Io::Direct, engine) => {
            let ring = UringOptions {
                depth: config.storage.depth,
            };
            match Uring::new(files, slots, &options, &ring, wake.clone()) {
                Ok(uring) => {
                    let why = match uring.registers() {
                        Ok(()) => "the trial at the start succeeded".to_string(),
                        Err(why) => {
                            format!("the trial succeeded, without registered buffers: {why}")
                        }
                    };
                    Ok(Chosen {
                        storage: Box::new(uring),
                        facts: said("uring", why),
                    })
                }
                Err(refused) if engine == Engine::Uring => Err(StartError::Uring(refused)),
                Err(refused) => by_threads(refused.to_string()),
            }
        }
    }
}

/// Tries whether the back end checks the groups of callers, which storage threads switch between.
pub(super) fn check_groups(config: &Config, files: &PosixFiles) -> Result<(), StartError> {
    let export = config.export.display();
    match files.groups_count() {
        Ok(Some(false)) => Err(StartError::Unshared(format!(
            "export {export}: groups of callers: the file system goes by groups that a thread had \
             earlier, so members of a group would be refused and others let in; mount GlusterFS \
             with -o gid-timeout=0, others with what keeps them from caching groups"
        ))),
        Ok(_) => Ok(()),
        Err(error) => {
            warn!("export {export}: cannot try whether groups of callers count: {error}");
            Ok(())
        }
    }
}

/// Refuses a mount whose process caches what other nodes may change, or that reads from a GlusterFS
/// brick which has come back without the changes that it missed.
pub(super) fn check_layers(config: &Config, backend: &Backend) -> Result<(), StartError> {
    let export = config.export.display();
    let lacks = backend.gluster_lacks();
    let lacks = lacks.map_err(|error| {
        StartError::Unshared(format!(
            "export {export}: the settings of this GlusterFS volume cannot be read ({error}), and \
             by its defaults forwarders on several nodes would be wrong; mount the volume itself, \
             for a bind mount of a folder does not show them; {ONE_NODE}"
        ))
    })?;
    if lacks.is_empty() {
        return Ok(());
    }
    // `server:volume` or `server:/volume/folder`.
    let volume = backend.source.rsplit(':').next().unwrap_or_default();
    let volume = volume
        .trim_matches('/')
        .split('/')
        .next()
        .unwrap_or_default();
    Err(StartError::Unshared(format!(
        "export {export}: sizes and bytes of other nodes: GlusterFS's client, as this volume is \
         set, holds writes back, remembers sizes and data, or reads a brick that is back without \
         what it missed, so forwarders on several nodes would be wrong; `gluster volume set \
         {volume}` for each of: {}; then mount it again, for a mount shows what it began with{}",
        lacks.join(", "),
        match lacks.iter().any(|lack| is_needed_alone(lack)) {
            true => String::new(),
            false => format!("; {ONE_NODE}"),
        }
    )))
}

const ONE_NODE: &str = "if all forwarders run on this node, set one_node = true in [ownership]";

/// Warns of what such a mount may lose even where forwarders of one node use it alone.
pub(super) fn warn_of_layers(config: &Config, backend: &Backend) {
    let export = config.export.display();
    for lack in backend.gluster_lacks().unwrap_or_default() {
        if is_needed_alone(lack) {
            warn!(
                "export {export}: files that were removed come back unless the volume has {lack}"
            );
        }
    }
}

/// Tries whether data can bypass the page cache, as forwarders on several nodes need it.
fn bypass(config: &Config, files: &PosixFiles) -> Result<(), StartError> {
    let refused = |error: std::io::Error| {
        StartError::Unshared(format!(
            "export {}: forwarders on several nodes need data past the page cache (direct I/O) at \
             any place and length on this file system, and it has none: {error} (GlusterFS has it \
             where the volume's network.remote-dio is enable); if all forwarders \
             run on this node, set one_node = true in [ownership]",
            config.export.display()
        ))
    };
    if config.storage.engine == Engine::Uring {
        let why = "engine = \"uring\" needs direct I/O in whole blocks; set engine = \"auto\"";
        return Err(refused(std::io::Error::other(why)));
    }
    files.try_bypass().map_err(refused)
}

/// Whether data bypasses the page cache: only where the export supports direct I/O.
fn io(config: &Config, files: &PosixFiles) -> Result<Io, StartError> {
    if files.bypasses() {
        bypass(config, files)?;
        return Ok(Io::Direct);
    }
    if config.storage.io == Io::Buffered {
        return Ok(Io::Buffered);
    }
    let page = rustix::param::page_size() as u64;
    let refusal = match files.try_direct() {
        Err(error) => error,
        Ok(()) if config.seats > 1 && config.stripe < page => {
            std::io::Error::other(format!("a stripe is smaller than a page ({page} bytes)"))
        }
        Ok(()) => return Ok(Io::Direct),
    };
    if config.storage.engine == Engine::Uring {
        return Err(StartError::Uring(UringRefused::Trial(refusal)));
    }
    let export = config.export.display();
    warn!("export {export} takes no direct I/O ({refusal}): data goes through the page cache");
    files.forget_direct();
    Ok(Io::Buffered)
}

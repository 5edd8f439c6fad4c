//! `[servers]`: storage servers behind the forwarders.

use super::source::{ScenarioError, Source};
use crate::units::{Bytes, Duration};
use crate::world::{NetworkOptions, ServersOptions};
use serde::Deserialize;
use tidegate_device::{Device, DeviceOptions, ServerOptions};

/// Most servers, as of forwarders.
const COUNT_MAX: u16 = 1024;

/// Most bytes of a page cache.
const CACHE_MAX: u64 = 1 << 50;

/// Smallest piece: a page.
const BUFFER_MIN: u64 = 4096;

/// Of a page cache, what may be written and not written back: a fifth, as Linux has it by default.
const DIRTY_PART: u64 = 5;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Servers {
    count: u16,
    #[serde(default = "stripe")]
    stripe: Bytes,
    bandwidth_mb_s: Option<u64>,
    latency: Option<Duration>,
    #[serde(default = "buffer")]
    buffer: Bytes,
    #[serde(default = "buffers")]
    buffers: u32,
    #[serde(default = "request_time")]
    request_time: Duration,
    threads: Option<u32>,
    #[serde(default)]
    cache: Bytes,
    dirty: Option<Bytes>,
}

fn stripe() -> Bytes {
    Bytes(64 << 10)
}
fn buffer() -> Bytes {
    Bytes(256 << 10)
}
/// The most pieces of a call that can be under way at one server.
const BUFFERS_MAX: u32 = 4096;

fn buffers() -> u32 {
    8
}
fn request_time() -> Duration {
    Duration(20_000)
}

/// The servers of a scenario; None if there is no such table.
pub(super) fn servers(
    source: &Source,
    table: &mut toml::Table,
    network: &NetworkOptions,
    device: &DeviceOptions,
) -> Result<Option<ServersOptions>, ScenarioError> {
    let Some(written) = table.remove("servers") else {
        return Ok(None);
    };
    let written: Servers = source.shape("servers", written)?;
    let wrong = |key: &str, reason: String| Err(source.wrong(&format!("servers.{key}"), reason));
    if !(1..=COUNT_MAX).contains(&written.count) {
        return wrong("count", format!("1 to {COUNT_MAX} are possible"));
    }
    let stripe = written.stripe.0;
    if !stripe.is_power_of_two() || stripe < BUFFER_MIN {
        let reason = format!("a stripe of {stripe} bytes: a power of two of at least {BUFFER_MIN}");
        return wrong("stripe", reason);
    }
    if written.bandwidth_mb_s == Some(0) {
        return wrong("bandwidth_mb_s", "must be positive".into());
    }
    let (buffer, buffers) = (written.buffer.0, written.buffers);
    if buffer < BUFFER_MIN {
        return wrong("buffer", format!("at least {BUFFER_MIN} bytes"));
    }
    if !(1..=BUFFERS_MAX).contains(&buffers) {
        return wrong("buffers", format!("must be 1 to {BUFFERS_MAX}"));
    }
    let depth = Device::new(device).map_or(1, |device| device.depth());
    let threads = written.threads.unwrap_or(depth);
    if threads == 0 {
        return wrong("threads", "must be positive".into());
    }
    let cache = written.cache.0;
    if cache > CACHE_MAX {
        return wrong("cache", format!("at most {CACHE_MAX} bytes"));
    }
    let dirty = written.dirty.map_or(cache / DIRTY_PART, |dirty| dirty.0);
    if dirty > cache {
        let reason = format!("{dirty} bytes of a cache of {cache}; 0: writes go to the device");
        return wrong("dirty", reason);
    }
    Ok(Some(ServersOptions {
        count: written.count,
        stripe,
        mb_s: written.bandwidth_mb_s.unwrap_or(network.mb_s),
        latency_ns: written.latency.map_or(network.latency_ns, |time| time.0),
        buffer,
        buffers,
        request_ns: written.request_time.0,
        server: ServerOptions {
            threads,
            cache_bytes: cache,
            dirty_bytes: dirty,
        },
    }))
}

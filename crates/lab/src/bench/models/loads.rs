//! The loads, each as settings of real forwarders and as a scenario, and the devices.

use std::fmt::Write;
use tidegate_sched::{CostModel, mix64};

/// Calls that run at once at a forwarder.
const DEPTH: u32 = 8;

/// Which load.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadName {
    Song,
    Agios,
    Shares,
}

/// An emulated device.
pub struct EmulatedDevice {
    pub name: &'static str,
    /// Lines of a `[device]`.
    lines: String,
    has_arm: bool,
}

/// The rates of `ssd-sata` in MB/s: of a channel that reads, of one that writes, of the interface.
const RATES: [u32; 3] = [180, 140, 520];

/// How far a rate may be off the preset's divided by how many times slower the device is, percent.
const RATE_OFF_MAX: u32 = 10;

/// The rates, so many times slower: in whole MB/s, as a device has them.
fn rates(slower: u32) -> [u32; 3] {
    RATES.map(|mb_s| (mb_s + slower / 2) / slower)
}

/// How many times slower an SSD is to be; refused where whole MB/s are too coarse for that.
pub fn slower(text: &str) -> Result<u32, String> {
    let number: Option<u32> = text.parse().ok().filter(|it| (1..=RATES[2]).contains(it));
    let fits = |slower: u32| {
        let mut pairs = RATES.into_iter().zip(rates(slower));
        pairs.all(|(preset, mb_s)| (mb_s * slower).abs_diff(preset) * 100 <= preset * RATE_OFF_MAX)
    };
    match number {
        Some(number) if fits(number) => Ok(number),
        Some(number) => {
            let nearest = (1..=RATES[2]).filter(|it| fits(*it));
            let nearest = nearest.min_by_key(|it| it.abs_diff(number)).unwrap_or(1);
            Err(format!(
                "rates are whole MB/s, too coarse for that: the nearest is {nearest}"
            ))
        }
        None => Err("must be a number of times, such as 20".to_string()),
    }
}

/// A disk with a queue, and an SSD with channels that is so many times slower than `ssd-sata`.
pub fn devices(slower: u32) -> [EmulatedDevice; 2] {
    let [read_us, write_us, busy_us] = [70, 40, 60].map(|us: u32| us * slower);
    let [read, write, interface] = rates(slower);
    let ssd = format!(
        "model = \"ssd-sata\"\nread_us = {read_us}\nwrite_us = {write_us}\n\
         channel_busy_us = {busy_us}\nchannel_read_mb_s = {read}\nchannel_write_mb_s = {write}\n\
         interface_mb_s = {interface}\n"
    );
    [
        EmulatedDevice {
            name: "hdd-ncq",
            lines: "model = \"hdd-ncq\"\n".to_string(),
            has_arm: true,
        },
        EmulatedDevice {
            name: "slow ssd",
            lines: ssd,
            has_arm: false,
        },
    ]
}

/// A policy with its options, as lines of a table.
pub struct Policy {
    pub label: &'static str,
    lines: &'static str,
}

/// Several programs, and the forwarders that they use.
pub struct Load {
    pub name: LoadName,
    pub word: &'static str,
    pub forwarders: usize,
    pub stripe: u64,
    pub payload_max: u32,
    pub merge_blocks: bool,
    /// Longest delay of a message on its way.
    jitter_us: u32,
    pub policies: Vec<Policy>,
    /// The weight of each program, if there are shares.
    weights: &'static [u32],
    pub programs: usize,
    pub processes: usize,
    /// Whether each process has a client of its own; otherwise the program has one.
    pub client_each: bool,
    /// Bytes of a call.
    pub call: u64,
    /// Calls of each process.
    pub calls: u64,
    /// How a process goes through its program's file.
    pattern: &'static str,
}

impl Load {
    /// All of them; short ones show only that they run.
    pub fn all(quick: bool) -> [Load; 3] {
        let mut loads = [song(), agios(), shares()];
        if quick {
            loads.iter_mut().for_each(|load| load.calls = 1);
        }
        loads
    }

    /// Bytes of a program's file.
    pub fn file_bytes(&self) -> u64 {
        self.processes as u64 * self.calls * self.call
    }

    /// Where the calls of a process begin.
    pub fn offsets(&self, process: usize, seed: u64) -> Vec<u64> {
        let (processes, process) = (self.processes as u64, process as u64);
        let numbers: Vec<u64> = match self.pattern {
            "strided" => (0..self.calls).map(|n| n * processes + process).collect(),
            "random" => {
                let all = shuffled(processes * self.calls, seed);
                let begin = (process * self.calls) as usize;
                all[begin..begin + self.calls as usize].to_vec()
            }
            _ => (0..self.calls).map(|n| process * self.calls + n).collect(),
        };
        numbers
            .into_iter()
            .map(|number| number * self.call)
            .collect()
    }

    /// A program's name.
    pub fn program(&self, number: usize) -> String {
        format!("{}.{number}", self.word)
    }

    /// A policy's `[scheduler]`.
    pub fn scheduler(policy: &Policy) -> String {
        format!("{}depth = {DEPTH}\n", policy.lines)
    }

    /// Rules of shares, if there are any.
    pub fn rules(&self) -> String {
        let rule = |(number, weight): (usize, &u32)| {
            let name = self.program(number);
            format!("[[app]]\nname = \"{name}\"\nweight = {weight}\n")
        };
        self.weights.iter().enumerate().map(rule).collect()
    }

    fn device(&self, device: &EmulatedDevice) -> String {
        // A file's blocks lie apart, so that places matter.
        let unit = self.stripe.min(self.call);
        format!(
            "[device]\n{}depth = {DEPTH}\nunit_bytes = {unit}\n",
            device.lines
        )
    }

    /// Sections of the configuration of forwarder `index`.
    pub fn sections(&self, device: &EmulatedDevice, index: usize) -> String {
        // The platters of no two disks stand alike, as in virtual time.
        let rotation = match device.has_arm {
            true => format!("rotation_seed = {}\n", index + 1),
            false => String::new(),
        };
        format!(
            "{}{rotation}[emulation]\nmessage_jitter_us = {}\nmessage_jitter_seed = {index}\n",
            self.device(device),
            self.jitter_us
        )
    }

    /// The same as a scenario.
    pub fn scenario(&self, device: &EmulatedDevice, repetitions: u32) -> String {
        let mut text = format!(
            "title = \"{}\"\nprotocol = \"as live\"\nrepetitions = {repetitions}\n",
            self.word
        );
        for policy in &self.policies {
            let label = policy.label;
            let _ = write!(
                text,
                "[[policy]]\nlabel = \"{label}\"\n{}",
                Load::scheduler(policy)
            );
        }
        let _ = write!(
            text,
            "[network]\npreset = \"ideal\"\njitter = \"{} us\"\novertaking = true\n\
             [forwarders]\ncount = {}\nstripe = {}\npayload_max = {}\nmerge_blocks = {}\n{}\
             [cost]\n{}",
            self.jitter_us,
            self.forwarders,
            self.stripe,
            self.payload_max,
            self.merge_blocks,
            self.device(device),
            CostModel::default(),
        );
        for number in 0..self.programs {
            let share = match self.weights.get(number) {
                Some(weight) => format!("share = {{ weight = {weight} }}\n"),
                None => String::new(),
            };
            let _ = write!(
                text,
                "[[application]]\nname = \"{}\"\nworkload = \"ior\"\npattern = \"{}\"\n\
                 processes = {}\nprocesses_per_node = {}\nrequest = {}\nrequests = {}\n{share}",
                self.program(number),
                self.pattern,
                self.processes,
                if self.client_each { 1 } else { self.processes },
                self.call,
                self.calls,
            );
        }
        text + "[figure]\nmetric = \"application_completion_mean\"\nalso = [\"makespan\"]\n"
    }
}

fn song() -> Load {
    Load {
        name: LoadName::Song,
        word: "song",
        forwarders: 8,
        stripe: 64 << 10,
        payload_max: 1 << 20,
        merge_blocks: false,
        jitter_us: 3000,
        policies: vec![
            Policy {
                label: "fifo",
                lines: "policy = \"fifo\"\nmerge = false\n",
            },
            Policy {
                label: "window",
                lines: "policy = \"window\"\nwindow_ms = 1000\nmerge = false\n",
            },
        ],
        weights: &[],
        programs: 10,
        processes: 1,
        client_each: true,
        call: 4 << 20,
        calls: 1,
        pattern: "contiguous",
    }
}

fn agios() -> Load {
    Load {
        name: LoadName::Agios,
        word: "agios",
        forwarders: 4,
        stripe: 32 << 10,
        payload_max: 8 << 10,
        merge_blocks: false,
        // Answers are late in virtual time alone, and here each call waits for one.
        jitter_us: 100,
        policies: vec![
            Policy {
                label: "fifo",
                lines: "policy = \"fifo\"\n",
            },
            Policy {
                label: "aioli",
                lines: "policy = \"aioli\"\nprediction = \"off\"\n",
            },
        ],
        weights: &[],
        programs: 4,
        processes: 4,
        client_each: true,
        call: 16 << 10,
        calls: 24,
        pattern: "strided",
    }
}

fn shares() -> Load {
    Load {
        name: LoadName::Shares,
        word: "shares",
        forwarders: 2,
        stripe: 512 << 10,
        payload_max: 1 << 20,
        merge_blocks: true,
        jitter_us: 0,
        policies: vec![
            Policy {
                label: "fifo",
                lines: "policy = \"fifo\"\n",
            },
            Policy {
                label: "two-level",
                lines: "policy = \"two-level\"\n",
            },
        ],
        weights: &[3, 1],
        programs: 2,
        processes: 16,
        client_each: false,
        call: 512 << 10,
        calls: 12,
        pattern: "random",
    }
}

/// The numbers below `count` in an order that the seed determines.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers.sort_by_key(|number| mix64(number ^ mix64(seed + 1)));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_server::device::DeviceOptions;
    use tidegate_sim::scenario::Scenario;

    #[test]
    fn scenarios_and_configurations_are_understood() {
        for load in Load::all(false) {
            for device in &devices(20) {
                let text = load.scenario(device, 5);
                Scenario::parse(&text, "models", load.word).expect(&text);
                let sections = load.sections(device, 3);
                let text = format!("export = \"/tmp\"\nlisten = [\"unix:/tmp/x\"]\n{sections}");
                let source = tidegate_server::config::Source::parse(&text, "x").expect(&text);
                tidegate_server::config::Config::from_source(source).expect(&text);
            }
        }
    }

    #[test]
    fn a_slower_device_is_as_much_slower_as_it_is_said_to_be() {
        let accepted: Vec<u32> = (0..200)
            .filter(|it| slower(&it.to_string()).is_ok())
            .collect();
        assert!(
            accepted.starts_with(&[1, 2, 3]) && accepted.contains(&20),
            "{accepted:?}"
        );
        assert!(
            !accepted.contains(&100) && accepted.last() == Some(&66),
            "{accepted:?}"
        );
        for slower in accepted {
            let [_, ssd] = devices(slower);
            let options = DeviceOptions::preset("ssd-sata").expect("it is one");
            for number in options.numbers() {
                let prefix = format!("{} = ", number.name);
                let own = ssd
                    .lines
                    .lines()
                    .find_map(|line| line.strip_prefix(&prefix));
                let Some(own) = own else { continue };
                let own: f64 = own.parse().expect("it is a number");
                let (times, preset) = (f64::from(slower), number.value as f64);
                let ratio = match number.name.ends_with("_mb_s") {
                    true => own * times / preset,
                    false => own / times / preset,
                };
                assert!(
                    (0.9..=1.1).contains(&ratio),
                    "{} {slower}: {ratio}",
                    number.name
                );
            }
        }
        let refusal = slower("100").expect_err("it is too coarse");
        assert!(refusal.ends_with("the nearest is 66"), "{refusal}");
        assert!(slower("x").is_err() && slower("-1").is_err());
    }

    #[test]
    fn each_block_of_a_file_is_read_once() {
        for load in Load::all(false) {
            let processes = 0..load.processes;
            let mut all: Vec<u64> = processes.flat_map(|it| load.offsets(it, 7)).collect();
            all.sort_unstable();
            let blocks: Vec<u64> = (0..load.file_bytes() / load.call)
                .map(|n| n * load.call)
                .collect();
            assert_eq!(all, blocks, "{}", load.word);
        }
    }
}

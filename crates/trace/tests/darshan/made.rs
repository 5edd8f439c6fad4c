//! Makes small Darshan logs, field by field.

use flate2::write::ZlibEncoder;
use std::io::Write;

/// An access of a log.
#[derive(Clone, Copy)]
pub struct Access {
    pub write: bool,
    pub offset: i64,
    pub len: i64,
    pub begin: f64,
    pub end: f64,
}

/// File id, rank, accesses.
type File = (u64, i64, Vec<Access>);

/// What a log is made of; the default has counters of POSIX and STDIO only.
pub struct Made {
    pub version: &'static str,
    pub big_endian: bool,
    pub zlib: bool,
    /// Accesses tell their threads, as newer modules' do.
    pub threads: bool,
    /// DXT_POSIX ran out of memory.
    pub partial: bool,
    pub posix: Vec<File>,
    pub mpiio: Vec<File>,
    /// Told as the number of reads of each file, instead of the right one.
    pub count: Option<i64>,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            version: "3.21",
            big_endian: false,
            zlib: true,
            threads: false,
            partial: false,
            posix: Vec::new(),
            mpiio: Vec::new(),
            count: None,
        }
    }
}

impl Made {
    /// The log.
    pub fn bytes(&self) -> Vec<u8> {
        let (stdio, posix, modules_max) = match self.version {
            "3.00" | "3.10" => (7, 8, 16),
            "3.20" | "3.21" => (8, 9, 16),
            _ => (9, 10, 64),
        };
        let wide = modules_max == 64;
        let mut parts: Vec<(u32, Vec<u8>)> = vec![(0, Vec::new()); modules_max];
        parts[1] = (4, self.pack(b"counters of POSIX"));
        parts[stdio] = (2, self.pack(b"counters of STDIO"));
        let threads = u32::from(self.threads);
        for (number, version, files) in [(posix, 1, &self.posix), (posix + 1, 2, &self.mpiio)] {
            if !files.is_empty() {
                parts[number] = (version + threads, self.pack(&self.module(files)));
            }
        }
        let job = self.pack(&self.job(wide));
        let names = self.pack(b"names");
        let begin = if wide { 32 } else { 24 } + (1 + modules_max) * 16 + modules_max * 4;
        let mut log = [self.version.as_bytes(), &[0; 4]].concat();
        log.extend(self.number(6_567_223));
        log.push(if self.zlib { 0 } else { 2 });
        log.extend([0; 3]);
        let partial = if self.partial { 1u64 << posix } else { 0 };
        match wide {
            true => log.extend([vec![0; 4], self.number(partial as i64)].concat()),
            false => log.extend(self.short(partial as u32)),
        }
        let mut at = begin + job.len();
        let places = std::iter::once(&names).chain(parts.iter().map(|(_, data)| data));
        for data in places {
            let offset = if data.is_empty() { 0 } else { at };
            log.extend(
                [offset, data.len()]
                    .map(|value| self.number(value as i64))
                    .concat(),
            );
            at += data.len();
        }
        parts
            .iter()
            .for_each(|(version, _)| log.extend(self.short(*version)));
        assert_eq!(log.len(), begin);
        log.extend(job);
        log.extend(names);
        parts.iter().for_each(|(_, data)| log.extend(data));
        log
    }

    fn job(&self, wide: bool) -> Vec<u8> {
        let numbers: &[i64] = match wide {
            true => &[1000, 1_700_000_000, 5, 1_700_000_009, 6, 4, 1],
            false => &[1000, 1_700_000_000, 1_700_000_009, 4, 1],
        };
        let mut job: Vec<u8> = numbers
            .iter()
            .flat_map(|value| self.number(*value))
            .collect();
        job.extend([0; 1024]);
        job.extend(b"/apps/bin/ior -a POSIX\nlustre\t/scratch\n");
        job
    }

    fn module(&self, files: &[File]) -> Vec<u8> {
        let mut data = Vec::new();
        for (id, rank, accesses) in files {
            let writes = accesses.iter().filter(|access| access.write);
            let reads = accesses.iter().filter(|access| !access.write);
            data.extend(
                [*id as i64, *rank, -1]
                    .map(|value| self.number(value))
                    .concat(),
            );
            data.extend([b'h'; 64]);
            let told = self.count.unwrap_or(reads.clone().count() as i64);
            data.extend(self.number(writes.clone().count() as i64));
            data.extend(self.number(told));
            for access in writes.chain(reads) {
                data.extend(
                    [access.offset, access.len]
                        .map(|value| self.number(value))
                        .concat(),
                );
                for seconds in [access.begin, access.end] {
                    data.extend(self.number(seconds.to_bits() as i64));
                }
                if self.threads {
                    data.extend(self.number(4711));
                }
            }
        }
        data
    }

    fn pack(&self, data: &[u8]) -> Vec<u8> {
        if !self.zlib {
            return data.to_vec();
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).expect("memory");
        encoder.finish().expect("memory")
    }

    fn number(&self, value: i64) -> Vec<u8> {
        match self.big_endian {
            true => value.to_be_bytes().to_vec(),
            false => value.to_le_bytes().to_vec(),
        }
    }

    fn short(&self, value: u32) -> Vec<u8> {
        match self.big_endian {
            true => value.to_be_bytes().to_vec(),
            false => value.to_le_bytes().to_vec(),
        }
    }
}

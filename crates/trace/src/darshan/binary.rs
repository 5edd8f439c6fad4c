//! Binary logs: a plain header that says where the parts are, and compressed parts.

use super::accesses::{self, Access, checked};
use super::cursor::{Cursor, text};
use super::inflate::{Compression, Part};
use super::{Log, Module, Options, Refusal, Wrong};
use crate::record::Record;
use tidegate_sched::Direction;

const MAGIC: i64 = 6_567_223;
/// A file's record: id, rank, a mark, host name, numbers of writes and reads.
const FILE_LEN: usize = 104;
/// An access: offset, length, start, end, and from some version of each module on the thread.
const ACCESS_LEN: usize = 32;
const ACCESS_THREAD_LEN: usize = 40;
/// The job's part: numbers, metadata, then command line and mounts as text.
const JOB_LEN: usize = 4096;
const METADATA_LEN: usize = 1024;

/// The modules of each version of the format, by number.
const MODULES_3_00: &[&str] = &[
    "NULL",
    "POSIX",
    "MPI-IO",
    "HDF5",
    "PNETCDF",
    "BG/Q",
    "LUSTRE",
    "STDIO",
    "DXT_POSIX",
    "DXT_MPIIO",
    "MDHIM",
    "APXC",
    "APMPI",
];
const MODULES_3_20: &[&str] = &[
    "NULL",
    "POSIX",
    "MPI-IO",
    "H5F",
    "H5D",
    "PNETCDF",
    "BG/Q",
    "LUSTRE",
    "STDIO",
    "DXT_POSIX",
    "DXT_MPIIO",
    "MDHIM",
    "APXC",
    "APMPI",
    "HEATMAP",
];
const MODULES_3_41: &[&str] = &[
    "NULL",
    "POSIX",
    "MPI-IO",
    "H5F",
    "H5D",
    "PNETCDF_FILE",
    "PNETCDF_VAR",
    "BG/Q",
    "LUSTRE",
    "STDIO",
    "DXT_POSIX",
    "DXT_MPIIO",
    "MDHIM",
    "APXC",
    "APMPI",
    "HEATMAP",
    "DFS",
    "DAOS",
];

/// A version of the format.
struct Version {
    modules: &'static [&'static str],
    modules_max: usize,
    /// The job tells fractions of seconds, and the header more flags.
    wide: bool,
}

/// Where a part lies in the file, compressed.
#[derive(Clone, Copy, Default)]
struct Place {
    offset: u64,
    len: u64,
}

struct Header {
    version: Version,
    big_endian: bool,
    compression: Compression,
    /// Modules for which Darshan ran out of memory, by number.
    partial: u64,
    job: Place,
    parts: Vec<(Place, u32)>,
}

/// Reads a log.
pub(super) fn read(bytes: &[u8], options: &Options) -> Result<Log, Refusal> {
    let header = header(bytes)?;
    let job = job(bytes, &header)?;
    let number = |module: Module| {
        let mut names = header.version.modules.iter();
        let found = names.position(|name| *name == module.name());
        found.filter(|number| header.parts[*number].0.len > 0)
    };
    let modules = [Module::Posix, Module::Mpiio];
    let mut present: Vec<_> = modules
        .iter()
        .copied()
        .filter(|one| number(*one).is_some())
        .collect();
    while let Some(module) = accesses::choose(options.module, &present) {
        let number = number(module).expect("it is present");
        let records = accesses_of(bytes, &header, module, number)?;
        if records.is_empty() {
            // Darshan was to trace, and the program did nothing through these calls.
            present.retain(|other| *other != module);
            continue;
        }
        let mut warnings = Vec::new();
        if header.partial & 1 << number != 0 {
            warnings.push(format!(
                "Darshan ran out of memory for {}, so the log has only some of the accesses; \
                 record with a larger DARSHAN_MODMEM",
                module.name()
            ));
        }
        let zero = accesses::wall_ns(job.start, job.start_ns);
        return Ok(accesses::log(records, module, job.command, zero, warnings));
    }
    let parts = header.parts.iter().enumerate();
    let parts = parts.filter(|(_, (place, _))| place.len > 0);
    let name = |number: usize| match header.version.modules.get(number) {
        Some(name) => name.to_string(),
        None => format!("module {number}"),
    };
    Err(Refusal::NoAccesses {
        wanted: accesses::wanted(options.module),
        command: job.command,
        modules: parts.map(|(number, _)| name(number)).collect(),
    })
}

/// Whether the numbers of a log that begins so are big-endian; a refusal if it is no log.
pub(super) fn is_big_endian(bytes: &[u8]) -> Result<bool, Refusal> {
    let Some(magic) = bytes.get(8..).and_then(|rest| rest.first_chunk::<8>()) else {
        let why = "it is shorter than a log's header";
        return Err(Refusal::NoLog(why.to_string()));
    };
    match (i64::from_le_bytes(*magic), i64::from_be_bytes(*magic)) {
        (MAGIC, _) => Ok(false),
        (_, MAGIC) => Ok(true),
        _ => {
            let why = "it does not have the magic number of Darshan 3 at byte 8";
            Err(Refusal::NoLog(why.to_string()))
        }
    }
}

fn header(bytes: &[u8]) -> Result<Header, Refusal> {
    let big_endian = is_big_endian(bytes)?;
    let version = Cursor::new(bytes, big_endian, "header").take::<8>()?;
    let version = self::version(&text(&version))?;
    let compression = compression(bytes)?;
    let begin = if version.wide { 24 } else { 20 };
    let mut cursor = Cursor::new(bytes, big_endian, "header").to(begin);
    let partial = match version.wide {
        true => cursor.u64()?,
        false => cursor.u32()?.into(),
    };
    let names = place(&mut cursor, bytes, "the table of names")?;
    let mut places = Vec::new();
    for number in 0..version.modules_max {
        let name = version.modules.get(number).copied();
        places.push(place(&mut cursor, bytes, name.unwrap_or("a module"))?);
    }
    let mut versions = Vec::new();
    for _ in 0..version.modules_max {
        versions.push(cursor.u32()?);
    }
    let begin = header_len(&version) as u64;
    let mut ends = std::iter::once(&names).chain(&places);
    let end = ends.find(|place| place.offset != 0);
    let end = end.map_or(bytes.len() as u64, |place| place.offset);
    let Some(len) = end.checked_sub(begin) else {
        let why = format!("a part begins at byte {end}, within the header");
        return Err(Wrong::new("header", "table of parts", why).into());
    };
    Ok(Header {
        version,
        big_endian,
        compression,
        partial,
        job: Place { offset: begin, len },
        parts: places.into_iter().zip(versions).collect(),
    })
}

fn compression(bytes: &[u8]) -> Result<Compression, Wrong> {
    let why = match Cursor::new(bytes, false, "header").to(16).take()? {
        [0u8] => return Ok(Compression::Zlib),
        [2] => return Ok(Compression::None),
        [1] => "the log is compressed with bzip2; `darshan-convert IN OUT` makes one with zlib of \
                it"
        .to_string(),
        [other] => format!("a compression of the unknown kind {other}"),
    };
    Err(Wrong::new("header", "byte 16", why))
}

/// A place of the table, which must lie in the file.
fn place(cursor: &mut Cursor<'_>, bytes: &[u8], what: &str) -> Result<Place, Wrong> {
    let place = Place {
        offset: cursor.u64()?,
        len: cursor.u64()?,
    };
    let (end, len) = (place.offset.checked_add(place.len), bytes.len());
    if end.is_none_or(|end| end > len as u64) {
        let why = format!(
            "{what} lies at byte {} and has {} bytes, but the file ends at byte {len}; is it cut \
             short?",
            place.offset, place.len,
        );
        return Err(Wrong::new("header", "table of parts", why));
    }
    Ok(place)
}

fn version(text: &str) -> Result<Version, Wrong> {
    let (modules, modules_max) = match text {
        "3.00" | "3.10" => (MODULES_3_00, 16),
        "3.20" | "3.21" => (MODULES_3_20, 16),
        "3.41" => (MODULES_3_41, 64),
        _ => {
            let why = format!(
                "the format's version is \"{text}\"; known are 3.00, 3.10, 3.20, 3.21 and 3.41"
            );
            return Err(Wrong::new("header", "byte 0", why));
        }
    };
    Ok(Version {
        modules,
        modules_max,
        wide: modules_max == 64,
    })
}

fn header_len(version: &Version) -> usize {
    let begin = if version.wide { 32 } else { 24 };
    begin + (1 + version.modules_max) * 16 + version.modules_max * 4
}

fn part<'a>(bytes: &'a [u8], section: &'a str, place: Place, header: &Header) -> Part<'a> {
    let (begin, end) = (place.offset as usize, (place.offset + place.len) as usize);
    Part::new(
        section,
        &bytes[begin..end],
        place.offset,
        header.compression,
    )
}

struct Job {
    start: i64,
    start_ns: i64,
    command: String,
}

fn job(bytes: &[u8], header: &Header) -> Result<Job, Wrong> {
    const SECTION: &str = "job";
    let mut data = [0; JOB_LEN];
    let len = part(bytes, SECTION, header.job, header).fill_some(&mut data)?;
    let data = &data[..len];
    let mut cursor = Cursor::new(data, header.big_endian, SECTION).to(8);
    let start = cursor.i64()?;
    let (start_ns, numbers) = match header.version.wide {
        true => (cursor.i64()?, 7),
        false => (0, 5),
    };
    let command = data.get(numbers * 8 + METADATA_LEN..).unwrap_or_default();
    let command = text(command);
    // The mounts follow behind the first line.
    let command = command.lines().next().unwrap_or_default().trim();
    Ok(Job {
        start,
        start_ns,
        command: command.to_string(),
    })
}

fn accesses_of(
    bytes: &[u8],
    header: &Header,
    module: Module,
    number: usize,
) -> Result<Vec<Record>, Wrong> {
    let section = module.name();
    let (place, version) = header.parts[number];
    let len = match (module, version) {
        (Module::Posix, 1) | (Module::Mpiio, 2) => ACCESS_LEN,
        (Module::Posix, 2) | (Module::Mpiio, 3) => ACCESS_THREAD_LEN,
        (Module::Mpiio, 1) => {
            let why = "its version 1 tells no offsets, so there is nothing to import";
            return Err(Wrong::new(section, "header", why));
        }
        _ => {
            let why = format!("its version {version} is not known");
            return Err(Wrong::new(section, "header", why));
        }
    };
    let mut part = part(bytes, section, place, header);
    let mut records = Vec::new();
    let mut file = [0; FILE_LEN];
    while part.fill(&mut file)? {
        file_accesses(
            &mut part,
            &file,
            len,
            (section, header.big_endian),
            &mut records,
        )?;
    }
    Ok(records)
}

/// Reads the accesses of one rank to one file: its writes, then its reads.
fn file_accesses(
    part: &mut Part<'_>,
    file: &[u8; FILE_LEN],
    len: usize,
    (section, big_endian): (&str, bool),
    records: &mut Vec<Record>,
) -> Result<(), Wrong> {
    let mut cursor = Cursor::new(file, big_endian, section);
    let (id, rank) = (cursor.u64()?, cursor.i64()?);
    let mut cursor = cursor.to(FILE_LEN - 16);
    let at = part.at();
    let mut count = |what: &str| {
        let count = cursor.i64()?;
        u64::try_from(count).map_err(|_| {
            let place = format!("byte {} of its data", at - FILE_LEN as u64);
            Wrong::new(section, place, format!("the number of {what} is {count}"))
        })
    };
    let counts = [count("writes")?, count("reads")?];
    // Nothing is set aside for the numbers that are told: what is not there is not believed.
    let mut data = [0; ACCESS_THREAD_LEN];
    for (direction, count) in [Direction::Write, Direction::Read].into_iter().zip(counts) {
        for done in 0..count {
            let at = part.at();
            if !part.fill(&mut data[..len])? {
                let place = format!("byte {at} of its data");
                let why = format!("it ends there, after {done} of {count} accesses of a file");
                return Err(Wrong::new(section, place, why));
            }
            let mut cursor = Cursor::new(&data, big_endian, section);
            let access = Access {
                file: id,
                rank,
                direction,
                offset: cursor.i64()?,
                len: cursor.i64()?,
                begin: cursor.f64()?,
                end: cursor.f64()?,
            };
            let place = || format!("byte {at} of its data");
            records.push(checked(&access, section, place)?);
        }
    }
    Ok(())
}

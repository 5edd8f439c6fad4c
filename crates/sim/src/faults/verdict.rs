//! What must hold when all programs have ended: their folders, the journal, the prizes and the
//! counter.

use super::script::{COUNTER, JOURNAL, RECORD, SHARED, Script};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_forward::Files;
use tidegate_forward::model::{Disk, Switch};

/// Compares the back end with all programs together.
pub fn check(disk: &Disk, scripts: &[&Script]) -> Result<(), String> {
    for script in scripts {
        check_folder(disk, script)?;
    }
    check_journal(disk, scripts)?;
    check_prizes(disk, scripts)?;
    let counter = contents(disk, &format!("{SHARED}/{COUNTER}"))?;
    let value = u64::from_le_bytes(counter[..8].try_into().expect("8 bytes"));
    let want: u64 = scripts.iter().map(|s| s.increments).sum();
    if value != want {
        return Err(format!(
            "the counter is {value} after {want} increments under its lock"
        ));
    }
    Ok(())
}

fn check_folder(disk: &Disk, script: &Script) -> Result<(), String> {
    let folder = script.folder_name();
    let got = list(disk, &folder)?;
    let want: Vec<_> = script.names().cloned().collect();
    if got != want {
        return Err(format!("{folder} has {got:?} instead of {want:?}"));
    }
    for name in want {
        if let Some(own) = script.file_of(&name) {
            let path = format!("{folder}/{name}");
            for got in [contents(disk, &path)?, other_copy(disk, &path)?] {
                if got != own.bytes {
                    let (got, want) = (got.len(), own.bytes.len());
                    return Err(format!("{path} differs ({got} and {want} bytes)"));
                }
            }
        }
    }
    Ok(())
}

fn check_journal(disk: &Disk, scripts: &[&Script]) -> Result<(), String> {
    let path = format!("{SHARED}/{JOURNAL}");
    check_copy(&contents(disk, &path)?, scripts)?;
    check_copy(&other_copy(disk, &path)?, scripts)
        .map_err(|what| format!("in another copy of the journal: {what}"))
}

fn check_copy(journal: &[u8], scripts: &[&Script]) -> Result<(), String> {
    if scripts.iter().any(|script| script.is_lossy()) {
        return check_lossy_journal(journal, scripts);
    }
    let mut told = BTreeMap::new();
    for (record, offset) in scripts.iter().flat_map(|s| &s.journal) {
        if told.insert(*offset, *record).is_some() {
            return Err(format!("two appends were told offset {offset}"));
        }
    }
    if journal.len() != told.len() * RECORD {
        let records = journal.len() as f64 / RECORD as f64;
        return Err(format!("{} appends left {records} records", told.len()));
    }
    for (offset, record) in told {
        let at = offset as usize;
        if journal.get(at..at + RECORD) != Some(&record[..]) {
            return Err(format!("the record told offset {offset} is not there"));
        }
    }
    Ok(())
}

/// Checks the journal where nodes can lose writes: every synced record is there once, and nothing
/// that nobody wrote. A record that an fsync has reported as lost may be there, once.
fn check_lossy_journal(journal: &[u8], scripts: &[&Script]) -> Result<(), String> {
    let mut there = BTreeMap::new();
    for (index, record) in journal.chunks(RECORD).enumerate() {
        let offset = (index * RECORD) as u64;
        if let Some(other) = there.insert(record.to_vec(), offset) {
            return Err(format!(
                "{record:?} is in the journal at {other} and {offset}"
            ));
        }
    }
    for (record, offset) in scripts.iter().flat_map(|s| &s.journal) {
        match there.remove(&record[..]) {
            Some(at) if at == *offset => {}
            at => return Err(format!("the record told offset {offset} is at {at:?}")),
        }
    }
    for (record, _) in scripts.iter().flat_map(|s| &s.doubtful) {
        there.remove(&record[..]);
    }
    match there.first_key_value() {
        None => Ok(()),
        Some((record, offset)) => Err(format!("nobody wrote {record:?} at {offset}")),
    }
}

fn check_prizes(disk: &Disk, scripts: &[&Script]) -> Result<(), String> {
    let mut won = BTreeSet::new();
    for number in scripts.iter().flat_map(|s| &s.prizes) {
        if !won.insert(format!("prize-{number}")) {
            return Err(format!("two programs made prize-{number}"));
        }
    }
    let there: BTreeSet<_> = list(disk, SHARED)?
        .into_iter()
        .filter(|n| n.starts_with("prize-"))
        .collect();
    if there != won {
        let differ: Vec<_> = there.symmetric_difference(&won).collect();
        return Err(format!("made and told differ: {differ:?}"));
    }
    Ok(())
}

/// A disk with the files that all programs share.
pub fn shared_files() -> Disk {
    let disk = Disk::new();
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let made = files
        .mkdir(None, root, SHARED.as_bytes(), 0o777)
        .and_then(|folder| {
            files.create(None, folder.handle, JOURNAL.as_bytes(), 0o666)?;
            let counter = files.create(None, folder.handle, COUNTER.as_bytes(), 0o666)?;
            files.write_at(counter.handle, 0, &[0; 8]).map(drop)
        });
    made.expect("an empty disk takes three files");
    disk
}

fn contents(disk: &Disk, path: &str) -> Result<Vec<u8>, String> {
    disk.contents(path)
        .ok_or_else(|| format!("{path} is not there"))
}

/// The copy of the file that reads do not use.
fn other_copy(disk: &Disk, path: &str) -> Result<Vec<u8>, String> {
    disk.other_copy(path)
        .ok_or_else(|| format!("{path} is not there"))
}

fn list(disk: &Disk, folder: &str) -> Result<Vec<String>, String> {
    let mut files = disk.files(&Switch::new());
    let root = disk.root().handle;
    let listing = files
        .lookup(None, root, folder.as_bytes())
        .and_then(|attr| files.readdir(None, attr.handle, 0, 1 << 20, None))
        .map_err(|error| format!("{folder} cannot be listed: {error:?}"))?;
    let mut names: Vec<_> = listing
        .entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect();
    names.sort();
    Ok(names)
}

//! Writes and reads files from threads, by the calls that Rust programs use.
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

fn main() -> io::Result<()> {
    let name = std::env::args().nth(1).unwrap_or("data".into());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)?;
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let file = &file;
            scope.spawn(move || {
                for index in (worker..80).step_by(4) {
                    let data: Vec<u8> = (0..33_333u64).map(|i| (i * index % 251) as u8).collect();
                    file.write_all_at(&data, index * 33_333)
                        .expect("write_all_at");
                }
            });
        }
    });
    file.sync_all()?;
    let mut all = Vec::new();
    (&file).seek(SeekFrom::Start(33_330))?;
    (&file).read_to_end(&mut all)?;
    println!(
        "{} {}",
        all.len(),
        all.iter().map(|byte| u64::from(*byte)).sum::<u64>()
    );
    println!("{}", fs::copy(&name, "copy")?);
    assert_eq!(fs::read(&name)?, fs::read("copy")?);
    println!(
        "{:?}",
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&name)
            .map_err(|e| e.kind())
            .err()
    );
    let mut lines = io::BufWriter::new(File::create("lines")?);
    for line in 0..5000 {
        writeln!(lines, "line {line}")?;
    }
    drop(lines);
    println!(
        "{}",
        io::BufReader::new(File::open("lines")?).lines().count()
    );
    OpenOptions::new()
        .append(true)
        .open("lines")?
        .write_all(b"last\n")?;
    fs::create_dir_all("x/y/z")?;
    fs::rename("lines", "x/y/z/lines")?;
    fs::hard_link("x/y/z/lines", "again")?;
    fs::set_permissions("again", fs::Permissions::from_mode(0o640))?;
    let status = fs::metadata("x/y/z/lines")?;
    println!("{} {} {:o}", status.len(), status.nlink(), status.mode());
    file.set_len(100)?;
    println!("{}", fs::metadata(&name)?.len());
    fs::remove_dir_all("x")?;
    println!(
        "{:?}",
        fs::read_dir("x").map_err(|error| error.kind()).err()
    );
    Ok(())
}

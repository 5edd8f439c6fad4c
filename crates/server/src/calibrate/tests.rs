//! A measurement of the temporary directory, as short as can be, and what is refused.

use super::*;
use tidegate_sched::CostModel;

fn folder(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("the temporary directory is ours");
    path
}

#[test]
fn a_folder_is_measured_in_time_and_left_as_it_was() {
    let folder = folder("calibrate");
    let plan = Plan {
        bytes: 8 << 20,
        time: Duration::from_millis(500),
    };
    let start = Instant::now();
    let measured = measure(&folder, &plan, &|_| ()).expect("it can be written");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(std::fs::read_dir(&folder).expect("it is ours").count(), 0);
    std::fs::remove_dir(&folder).expect("it is empty");
    // Less where the folder is too slow to write all of it in the time.
    assert!((1 << 20..=8 << 20).contains(&measured.bytes));
    for (direction, sequential) in fit::KINDS {
        let points = measured.points.iter().filter(|point| {
            let access = point.access;
            (access.direction, access.sequential, access.by)
                == (direction, sequential, measured.by())
        });
        assert!(points.count() >= 2, "{:?}", measured.points);
    }
    assert!(
        measured
            .points
            .iter()
            .all(|point| point.access.len <= 2 << 20)
    );
    for direction in [Direction::Read, Direction::Write] {
        assert!((1..=32).contains(&measured.depth(direction)));
    }
    let fitted = measured.fit();
    let text = fitted.model.to_string();
    assert_eq!(CostModel::parse(&text), Ok(fitted.model));
    assert!(fitted.model.read_random.ns(1 << 20) > 1);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let plan = Plan {
        bytes: 8 << 20,
        time: Duration::from_millis(100),
    };
    let refusal = |dir: &Path, plan: &Plan| {
        let refused = measure(dir, plan, &|_| ());
        refused.expect_err("it must be refused").to_string()
    };
    let folder = folder("calibrate-refused");
    let file = folder.join("file");
    std::fs::write(&file, "").expect("it is ours");
    assert!(refusal(&file, &plan).contains("is not a directory"));
    assert!(refusal(&folder.join("none"), &plan).contains("No such file"));
    assert!(refusal(Path::new("/proc"), &plan).contains("cannot be made"));
    let bytes = 1 << 60;
    assert!(refusal(&folder, &Plan { bytes, ..plan }).contains("smaller --size"));
    let bytes = 4096;
    assert!(refusal(&folder, &Plan { bytes, ..plan }).contains("too small"));
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn the_depth_is_the_last_that_helps() {
    let one = |(depth, per_second): (u32, f64)| Depth {
        direction: Direction::Read,
        depth,
        per_second,
    };
    let measured = |depths: &[(u32, f64)]| Measured {
        bytes: BYTES_MIN,
        no_direct: None,
        points: Vec::new(),
        depths: depths.iter().copied().map(one).collect(),
    };
    let grows = measured(&[(1, 100.0), (2, 190.0), (4, 350.0), (8, 360.0)]);
    assert_eq!(grows.depth(Direction::Read), 4);
    assert_eq!(grows.depth(Direction::Write), 1);
    assert_eq!(
        measured(&[(1, 100.0), (2, 101.0)]).depth(Direction::Read),
        1
    );
}

//! Shows a phase as lines of text, one a second: what the jobs got, as numbers and as bars.

use super::jobs::Job;
use super::{Phase, kept, percent};

/// What one character of a bar stands for, MB/s.
const MB_S: f64 = 2.5;

/// Columns of a bar.
const BAR: usize = 24;

pub fn draw(phase: &Phase, jobs: &[Job; 2]) -> String {
    let mut text = format!("\n{}\n   s depth", phase.policy);
    for job in jobs {
        text += &format!("  {} MB/s  p95 ms  {:BAR$}", job.name, "");
    }
    text += "\n";
    for (second, depth) in phase.depth.iter().enumerate() {
        text += &format!("{second:4} {depth:5}");
        for (job, seconds) in jobs.iter().zip(&phase.seconds) {
            let it = &seconds[second];
            let mark = match (it.on, job.keeps(it)) {
                (false, _) => ' ',
                (true, true) => '=',
                (true, false) => '!',
            };
            let len = ((it.mb_s / MB_S) as usize).min(BAR);
            let bar: String =
                std::iter::repeat_n(if mark == ' ' { '-' } else { mark }, len).collect();
            text += &format!("  {:9.1} {:7.0}  {bar:BAR$}", it.mb_s, it.p95_ms);
        }
        text = text.trim_end().to_string() + "\n";
    }
    for (job, seconds) in jobs.iter().zip(&phase.seconds) {
        let percent = percent(kept(job, seconds));
        text += &format!(
            "{}: {} MB/s and p95 within {} ms in {percent} of the seconds in which it was on \
             (=: kept, !: not)\n",
            job.name, job.min_mb_s, job.latency_ms
        );
    }
    text
}

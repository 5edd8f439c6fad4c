//! What was found by one check, and what all findings come to.

use crate::plain;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How well a thing is.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// There is nothing to do.
    Ok,
    /// It works, and something is slower, less safe or less sure than it could be.
    Warning,
    /// Something does not work.
    Fails,
}

impl Verdict {
    /// The word for it, and the exit code of a report whose worst it is.
    fn word(self) -> (&'static str, u8) {
        match self {
            Verdict::Ok => ("ok", 0),
            Verdict::Warning => ("warning", 1),
            Verdict::Fails => ("fails", 2),
        }
    }
}

/// What a check has found.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at, in few words, the same each time.
    pub check: String,
    /// How well it is.
    pub verdict: Verdict,
    /// What was seen.
    pub text: String,
    /// What to do; None: nothing, or the text says it.
    pub advice: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(check: &str, text: impl ToString) -> Finding {
        Finding {
            check: check.to_string(),
            verdict: Verdict::Ok,
            text: text.to_string(),
            advice: None,
        }
    }

    /// It could be better.
    pub fn warning(check: &str, text: impl ToString, advice: impl ToString) -> Finding {
        Finding {
            verdict: Verdict::Warning,
            advice: Some(advice.to_string()),
            ..Finding::ok(check, text)
        }
    }

    /// It does not work.
    pub fn fails(check: &str, text: impl ToString, advice: impl ToString) -> Finding {
        Finding {
            verdict: Verdict::Fails,
            ..Finding::warning(check, text, advice)
        }
    }

    fn lines(&self) -> String {
        let (word, _) = self.verdict.word();
        let line = format!("{word:<8} {}: {}", self.check, self.text);
        let advice = self.advice.iter();
        let advice = advice.map(|advice| plain::line(&format!("         to do: {advice}")) + "\n");
        plain::line(&line) + "\n" + &advice.collect::<String>()
    }
}

/// All findings, in the order in which a reader follows them.
pub struct Report(pub Vec<Finding>);

impl Report {
    /// The worst of all verdicts.
    fn worst(&self) -> Verdict {
        let verdicts = self.0.iter().map(|finding| finding.verdict);
        verdicts.max().unwrap_or(Verdict::Ok)
    }

    /// The exit code of a command that ends with this report.
    pub fn code(&self) -> u8 {
        self.worst().word().1
    }

    fn count(&self, verdict: Verdict) -> usize {
        let alike = self.0.iter().filter(|finding| finding.verdict == verdict);
        alike.count()
    }

    /// For people.
    pub fn page(&self) -> String {
        let lines: String = self.0.iter().map(Finding::lines).collect();
        let count = |verdict: Verdict| format!("{} {}", self.count(verdict), verdict.word().0);
        let counts = [Verdict::Ok, Verdict::Warning, Verdict::Fails].map(count);
        format!("{lines}{}\n", counts.join(", "))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "verdict": self.worst(),
            "ok": self.count(Verdict::Ok),
            "warning": self.count(Verdict::Warning),
            "fails": self.count(Verdict::Fails),
            "findings": self.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_is_the_exit_code() {
        let ok = Finding::ok("a", "1");
        let warning = Finding::warning("b", "2", "do c");
        let fails = Finding::fails("d", "3\n4", "do e");
        for (findings, code, verdict) in [
            (vec![], 0, "ok"),
            (vec![ok.clone()], 0, "ok"),
            (vec![warning.clone(), ok.clone()], 1, "warning"),
            (vec![fails.clone(), warning.clone(), ok.clone()], 2, "fails"),
        ] {
            let report = Report(findings);
            assert_eq!(report.code(), code);
            assert_eq!(report.json()["verdict"], verdict);
        }
        let page = Report(vec![ok, warning, fails]).page();
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(
            lines,
            [
                "ok       a: 1",
                "warning  b: 2",
                "         to do: do c",
                "fails    d: 3\\u000a4",
                "         to do: do e",
                "1 ok, 1 warning, 1 fails",
            ]
        );
    }
}

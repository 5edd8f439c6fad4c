//! The sections of the page of performance that commands of their own write.

/// What `tidegate bench names` writes.
pub const NAMES: &str = "## Names";
/// What `tidegate bench encryption` writes.
pub const ENCRYPTION: &str = "## Encryption";
/// The section before which the page has these.
const BEFORE: &str = "\n## Scheduling\n";

/// The section with this title; none if there is none.
fn section_of<'a>(page: &'a str, title: &str) -> Option<&'a str> {
    let start = page.find(&format!("\n{title}\n"))? + 1;
    let rest = &page[start..];
    let len = rest[title.len()..]
        .find("\n## ")
        .map(|len| title.len() + len);
    Some(&rest[..len.map_or(rest.len(), |len| len + 1)])
}

/// The page with a section, which begins with its title, in the place of the one that is there.
pub fn with_section(page: &str, title: &str, section: &str) -> String {
    let section = section.trim_end();
    if let Some(old) = section_of(page, title) {
        return page.replacen(old, &format!("{section}\n\n"), 1);
    }
    match page.contains(BEFORE) {
        true => page.replacen(BEFORE, &format!("\n{section}\n{BEFORE}"), 1),
        false => format!("{page}\n{section}\n"),
    }
}

/// A new page with the sections that the page before has.
pub fn keep(page: &str, before: &str) -> String {
    [NAMES, ENCRYPTION]
        .into_iter()
        .fold(page.to_string(), |page, title| {
            match section_of(before, title) {
                Some(section) => with_section(&page, title, section),
                None => page,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "# Page\n\n## Other\n\ntext\n\n## Scheduling\n\nmore\n";

    #[test]
    fn a_section_replaces_the_one_that_is_there_and_nothing_else() {
        let first = format!("{ENCRYPTION}\n\none\n");
        let page = with_section(BARE, ENCRYPTION, &first);
        let expected = format!("# Page\n\n## Other\n\ntext\n\n{first}\n## Scheduling\n\nmore\n");
        assert_eq!(page, expected);
        assert_eq!(with_section(&page, ENCRYPTION, &first), page);
        let second = format!("{ENCRYPTION}\n\ntwo\n");
        let replaced = with_section(&page, ENCRYPTION, &second);
        assert_eq!(replaced, page.replace("one", "two"));
        assert_eq!(section_of(BARE, ENCRYPTION), None);
    }

    #[test]
    fn a_new_page_keeps_the_sections_of_other_commands() {
        let mut page = BARE.to_string();
        for (title, words) in [(ENCRYPTION, "one"), (NAMES, "two")] {
            page = with_section(&page, title, &format!("{title}\n\n{words}\n"));
        }
        let kept = keep(&BARE.replace("text", "new"), &page);
        let (names, encryption) = (kept.find("two"), kept.find("one"));
        assert!(names.is_some() && names < encryption, "{kept}");
        assert!(kept.contains("new") && kept.ends_with("\n## Scheduling\n\nmore\n"));
        assert_eq!(keep(&kept, &kept), kept);
        assert_eq!(keep(BARE, "# Page\n"), BARE);
    }
}

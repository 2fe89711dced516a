//! Reads numbers from texts with a `name: number` a line, as the kernel and Redis write them.

/// The number after `name:` at the start of a line.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?.trim_start();
        let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
        // A number larger than any machine's is not a number of bytes or pages.
        value[..digits].parse().ok().filter(|&n: &u64| n <= 1 << 50)
    })
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "used_memory_rss:9\r\nused_memory:5368\r\nAnonHugePages:     2048 kB\n";
        assert_eq!(field(text, "used_memory"), Some(5368));
        assert_eq!(field(text, "AnonHugePages"), Some(2048));
        assert_eq!(field(text, "memory"), None);
        assert_eq!(field("a:x\na:\na:99999999999999999999\n", "a"), None);
    }
}

//! A line of `/proc/PID/stat`: what the kernel tells everybody of a process.
//!
//! The name of the program is in the midst of it, in parentheses and as the program chose it: with
//! spaces, parentheses, line ends and bytes of any kind. So fields are counted from the last `)`.

/// What of that line is asked for here. Numbers of another PID namespace are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcStat {
    /// One letter: `R` runs, `S` sleeps, `Z` is a zombie, ...
    pub state: u8,
    /// Its process group.
    pub group: u64,
    /// Its session.
    pub session: u64,
    /// When it started, in clock ticks since the machine did.
    pub started_ticks: u64,
}

/// Fields before the state, which is the first behind the name. proc(5) counts from 1.
const BEFORE_STATE: usize = 3;

impl ProcStat {
    /// `None` where this is no such line, or not a whole one.
    pub fn parse(line: &[u8]) -> Option<ProcStat> {
        let name_end = line.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(&line[name_end + 1..]).ok()?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let word = |field: usize| words.get(field - BEFORE_STATE).copied();
        let number = |field: usize| word(field)?.parse().ok();
        Some(ProcStat {
            state: *word(3)?.as_bytes().first()?,
            group: number(5)?,
            session: number(6)?,
            started_ticks: number(22)?,
        })
    }

    /// What it belongs to, as far as it can be seen: its session; in a container that may be one of
    /// outside, which is shown as 0. The process group stands for it then, and the process itself
    /// where that is of outside too.
    pub fn family(&self, pid: u32) -> u64 {
        let seen = [self.session, self.group]
            .into_iter()
            .find(|number| *number > 0);
        seen.unwrap_or(u64::from(pid))
    }

    /// Whether it has ended: what is left is a number until somebody asks how it ended.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_belongs_to() {
        let family = |group, session| {
            let stat = ProcStat {
                state: b'S',
                group,
                session,
                started_ticks: 4242,
            };
            stat.family(7)
        };
        assert_eq!([family(6, 5), family(6, 0), family(0, 0)], [5, 6, 7]);
    }

    /// A whole line as the kernel writes it.
    fn line(name: &[u8], state: &str) -> Vec<u8> {
        let rest = format!(
            ") {state} 1 6 5 34816 7 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 10 18446744073709551615\n"
        );
        [b"7 (", name, rest.as_bytes()].concat()
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        let names: [&[u8]; 7] = [
            b"forebay",
            b"",
            b"two words",
            b"a ) b",
            b"((sd-pam))",
            b"x) Z 1 2 3 (y",
            b"\xff\xfe\n)",
        ];
        for name in names {
            let stat = ProcStat::parse(&line(name, "S")).expect("parses");
            let expected = ProcStat {
                state: b'S',
                group: 6,
                session: 5,
                started_ticks: 4242,
            };
            assert_eq!(stat, expected, "{}", name.escape_ascii());
            assert!(!stat.is_dead());
        }
    }

    #[test]
    fn zombies_are_dead_whatever_their_name() {
        for state in ["Z", "X", "x"] {
            assert!(ProcStat::parse(&line(b"a) S (b", state)).is_some_and(|stat| stat.is_dead()));
        }
    }

    #[test]
    fn what_is_no_whole_line_is_nothing() {
        for text in ["", "7", "7 (a", "7 (a)", "7 (a) S 1", "7 (a) S 1 x 5 0"] {
            assert_eq!(ProcStat::parse(text.as_bytes()), None, "{text}");
        }
        let whole = line(b"a", "S");
        assert_eq!(ProcStat::parse(&whole[..whole.len() / 2]), None);
    }

    #[test]
    fn the_kernel_writes_such_lines() {
        let own = std::fs::read("/proc/self/stat").expect("own line");
        let stat = ProcStat::parse(&own).expect("parses");
        assert!(!stat.is_dead() && stat.started_ticks > 0, "{stat:?}");
    }
}

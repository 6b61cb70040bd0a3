//! `--env-file`: settings from a file in the format of systemd's `EnvironmentFile=`.
//!
//! **Invariant:** a file that is accepted means the same as in a unit. What systemd ignores with a warning, reads differently
//! in different versions or does not document is refused.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::iter::Peekable;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::str::Chars;

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;
use super::unknown_variables::{check_variables, known_variables};

const FLAG: &str = "--env-file";

/// With `--env-file` on the command line, starts this program again, in the same process, without the flag and with the
/// variables of the file; settings in the environment are removed. Returns if there is no such flag, or an error.
///
/// Not by changing the environment of this process: that is not safe once there are threads, and so `unsafe` in Rust. With the
/// file in the real environment, everything that reads settings from there reads those of the file.
pub(super) fn apply() -> Result<(), clap::Error> {
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let Some(file) = take_flag(&mut arguments) else { return Ok(()) };
    let refuse = |problem: String| Err(Cli::command().error(ErrorKind::InvalidValue, problem));
    if take_flag(&mut arguments).is_some() {
        return refuse(format!("{FLAG} can be given only once"));
    }
    let variables = match read(Path::new(&file)) {
        Ok(variables) => variables,
        Err(problem) => return refuse(format!("{}: {problem}", file.display())),
    };
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return refuse(format!("{FLAG}: cannot find this program: {error}")),
    };
    let mut command = Command::new(program);
    command.args(arguments);
    for name in known_variables().into_iter().chain(petstore_config::variables()) {
        command.env_remove(name);
    }
    command.envs(variables.into_iter().map(|variable| (variable.name, variable.value)));
    let error = command.exec();
    refuse(format!("{FLAG}: cannot start this program again: {error}"))
}

/// Removes `--env-file FILE` or `--env-file=FILE` from the arguments. Leaves a flag without a value to the parser, which
/// refuses it.
fn take_flag(arguments: &mut Vec<OsString>) -> Option<OsString> {
    let attached = |argument: &OsStr| Some(argument.as_bytes().strip_prefix(FLAG.as_bytes())?.to_owned());
    let flags = arguments.iter().take_while(|argument| *argument != "--");
    let (index, rest) = flags
        .enumerate()
        .filter_map(|(index, argument)| Some((index, attached(argument)?)))
        .find(|(_, rest)| rest.is_empty() || rest.starts_with(b"="))?;
    if let [b'=', file @ ..] = &*rest {
        arguments.remove(index);
        return Some(OsStr::from_bytes(file).to_owned());
    }
    if index + 1 == arguments.len() {
        return None;
    }
    arguments.remove(index);
    Some(arguments.remove(index))
}

/// Reads a file. All variables that start like a setting must be one.
fn read(file: &Path) -> Result<Vec<Variable>, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let variables = parse(&text)?;
    for Variable { line, name, .. } in &variables {
        check_variables([name.clone()]).map_err(|error| format!("line {line}: {error}"))?;
    }
    Ok(variables)
}

/// An assignment, and the line on which it starts. If a name occurs twice, the last one counts.
#[derive(Debug, PartialEq, Eq)]
struct Variable {
    line: usize,
    name: String,
    value: String,
}

fn parse(text: &str) -> Result<Vec<Variable>, String> {
    let mut reader = EnvFileReader { characters: text.chars().peekable(), line: 1 };
    let mut variables = Vec::new();
    loop {
        while reader.characters.peek().is_some_and(|next| " \t\n".contains(*next)) {
            reader.next();
        }
        let line = reader.line;
        match reader.characters.peek() {
            None => return Ok(variables),
            Some('#' | ';') => reader.comment(),
            Some(_) => reader.variable().map(|variable| variables.push(variable)),
        }
        .map_err(|problem| format!("line {line}: {problem}"))?;
    }
}

struct EnvFileReader<'a> {
    characters: Peekable<Chars<'a>>,
    line: usize,
}

impl EnvFileReader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.characters.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn rest_of_line(&mut self) -> String {
        let mut rest = String::new();
        while let Some(character) = self.next().filter(|character| *character != '\n') {
            rest.push(character);
        }
        rest
    }

    fn comment(&mut self) -> Result<(), &'static str> {
        if self.rest_of_line().ends_with('\\') {
            return Err("a comment must not end with a backslash: some versions of systemd continue it");
        }
        Ok(())
    }

    fn variable(&mut self) -> Result<Variable, &'static str> {
        let line = self.line;
        let mut name = String::new();
        loop {
            match self.next() {
                Some('=') => break,
                None | Some('\n') => return Err("expected NAME=value"),
                Some(character) => name.push(character),
            }
        }
        let name = name.trim_end_matches([' ', '\t']).to_owned();
        let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
        if name.is_empty()
            || name.starts_with(|first: char| first.is_ascii_digit())
            || !name.chars().all(is_part)
        {
            return Err("the name of a variable has only letters, digits and underscores");
        }
        let value = self.value()?;
        if value.contains(['\0', '\r']) {
            return Err("a value must not contain NUL or a carriage return: end lines with a line feed only");
        }
        Ok(Variable { line, name, value })
    }

    fn value(&mut self) -> Result<String, &'static str> {
        while self.characters.next_if(|next| " \t".contains(*next)).is_some() {}
        let value = match self.characters.peek() {
            Some('\'') => self.single_quoted(),
            Some('"') => self.double_quoted(),
            _ => return self.unquoted(),
        };
        let value = value.ok_or("the closing quote is missing")?;
        if !self.rest_of_line().trim_matches([' ', '\t']).is_empty() {
            return Err("nothing may follow the closing quote");
        }
        Ok(value)
    }

    /// A backslash keeps the next character, or continues the line. Other white space at the end is dropped.
    fn unquoted(&mut self) -> Result<String, &'static str> {
        let (mut value, mut end) = (String::new(), 0);
        loop {
            match self.next() {
                None | Some('\n') => break,
                Some('\\') => {
                    let next = self.next().ok_or("the file ends with a backslash")?;
                    value.extend(Some(next).filter(|next| *next != '\n'));
                    end = value.len();
                }
                Some(character) => {
                    value.push(character);
                    if !" \t".contains(character) {
                        end = value.len();
                    }
                }
            }
        }
        value.truncate(end);
        Ok(value)
    }

    /// Everything up to the next quote, even lines.
    fn single_quoted(&mut self) -> Option<String> {
        self.next();
        let mut value = String::new();
        loop {
            match self.next()? {
                '\'' => return Some(value),
                character => value.push(character),
            }
        }
    }

    /// As in a shell, except that a dollar sign or a backtick needs no backslash.
    fn double_quoted(&mut self) -> Option<String> {
        self.next();
        let mut value = String::new();
        loop {
            match self.next()? {
                '"' => return Some(value),
                '\\' => match self.next()? {
                    '\n' => {}
                    escaped @ ('"' | '\\' | '`' | '$') => value.push(escaped),
                    other => value.extend(['\\', other]),
                },
                character => value.push(character),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // systemd 252 read the same values.
    #[test]
    fn a_file_is_read_as_systemd_documents_it() {
        let text = r#"# a comment
; another # one
  A=plain
B = spaces around and inside	
C='single "quoted" \n $x'
D="double \"quoted\" \\ \$x \n $y" 
E=
F=quotes "inside" and # no comment
G=one\
  two
H=a\ b\\c\ 
I="one\
two
three"
A=again"#;
        let variables = parse(text).unwrap();
        let found: Vec<(usize, &str, &str)> =
            variables.iter().map(|found| (found.line, &*found.name, &*found.value)).collect();
        assert_eq!(
            found,
            [
                (3, "A", "plain"),
                (4, "B", "spaces around and inside"),
                (5, "C", r#"single "quoted" \n $x"#),
                (6, "D", r#"double "quoted" \ $x \n $y"#),
                (7, "E", ""),
                (8, "F", r#"quotes "inside" and # no comment"#),
                (9, "G", "one  two"),
                (11, "H", r"a b\c "),
                (12, "I", "onetwo\nthree"),
                (15, "A", "again"),
            ]
        );
    }

    #[test]
    fn a_line_that_could_be_misread_is_refused_with_its_number() {
        for (text, problem) in [
            ("A=1\nB\n", "line 2: expected NAME=value"),
            ("A=1\n\nexport B=2\n", "line 3: the name of"),
            ("2A=1", "line 1: the name of"),
            ("=1", "line 1: the name of"),
            ("\u{feff}A=1", "line 1: the name of"),
            ("A='1\nB=2\n", "line 1: the closing quote is missing"),
            ("A=\"1\nB=2\\\"\n", "line 1: the closing quote is missing"),
            ("A='1' B=2", "line 1: nothing may follow the closing quote"),
            ("A='1'\\\n", "line 1: nothing may follow the closing quote"),
            ("# a comment \\\nA=1", "line 1: a comment must not end with a backslash"),
            ("A=1\\", "line 1: the file ends with a backslash"),
            ("A=1\r\nB=2\r\n", "line 1: a value must not contain"),
            ("A=1\0", "line 1: a value must not contain"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_flag_is_taken_from_anywhere_before_two_dashes() {
        for (given, file, rest) in [
            (&["doctor", "--env-file", "a", "--json"][..], Some("a"), &["doctor", "--json"][..]),
            (&["--env-file=a b", "doctor"], Some("a b"), &["doctor"]),
            (&["doctor", "--env-file="], Some(""), &["doctor"]),
            (&["doctor", "--env-file"], None, &["doctor", "--env-file"]),
            (&["doctor", "--env-files", "a"], None, &["doctor", "--env-files", "a"]),
            (&["import", "--", "--env-file", "a"], None, &["import", "--", "--env-file", "a"]),
        ] {
            let mut arguments = given.iter().map(OsString::from).collect();
            assert_eq!(take_flag(&mut arguments), file.map(OsString::from), "{given:?}");
            assert_eq!(arguments, rest, "{given:?}");
        }
    }
}

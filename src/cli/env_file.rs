//! `--env-file`: settings from a file in the format of systemd's `EnvironmentFile=`.
//!
//! **Invariant:** a file that is accepted means the same as in a unit. What systemd ignores with a warning, reads differently
//! in different versions or does not document is refused, and so is a value on several lines.
//!
//! `systemd-run --pipe --wait --property=EnvironmentFile=…` would read the file, too, but only as root and only where systemd runs,
//! and an operator who mistypes a setting there is told nothing.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

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
    let mut variables = Vec::new();
    for (line, text) in (1..).zip(text.split('\n')) {
        let text = text.trim_matches([' ', '\t']);
        let read = if text.starts_with(['#', ';']) { comment(text).map(|()| None) } else { variable(text) };
        let read = read.map_err(|problem| format!("line {line}: {problem}"))?;
        variables.extend(read.map(|(name, value)| Variable { line, name: name.to_owned(), value }));
    }
    Ok(variables)
}

fn comment(text: &str) -> Result<(), &'static str> {
    if text.ends_with('\\') {
        return Err("a comment must not end with a backslash: some versions of systemd continue it");
    }
    Ok(())
}

/// Reads a line that is not a comment. None if it is empty.
fn variable(text: &str) -> Result<Option<(&str, String)>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    let (name, value) = text.split_once('=').ok_or("expected NAME=value")?;
    let name = name.trim_end_matches([' ', '\t']);
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) || !name.chars().all(is_part)
    {
        return Err("the name of a variable has only letters, digits and underscores");
    }
    if value.contains(['\0', '\r']) {
        return Err("a value must not contain NUL or a carriage return: end lines with a line feed only");
    }
    let value = value.trim_start_matches([' ', '\t']);
    if let Some(quoted) = value.strip_prefix('\'') {
        return unescape(quoted, '\'').map(|value| Some((name, value)));
    }
    if let Some(quoted) = value.strip_prefix('"') {
        return unescape(quoted, '"').map(|value| Some((name, value)));
    }
    if value.contains('\\') {
        return Err("a value with a backslash must be in single quotes");
    }
    Ok(Some((name, value.to_owned())))
}

/// The value up to the closing quote, which ends the line.
fn unescape(quoted: &str, quote: char) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            _ if character == quote && characters.as_str().is_empty() => return Ok(value),
            _ if character == quote => return Err("nothing may follow the closing quote"),
            '\\' if quote == '"' => match characters.next() {
                Some(escaped @ ('"' | '\\' | '`' | '$')) => value.push(escaped),
                _ => {
                    return Err(
                        "in double quotes, a backslash may precede only `\"`, `\\`, `$` or a backtick",
                    );
                }
            },
            character => value.push(character),
        }
    }
    Err("the closing quote is missing: a value is on one line")
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
D="double \"quoted\" \\ \$x $y" 
E=
F=quotes "inside" and # no comment
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
                (6, "D", r#"double "quoted" \ $x $y"#),
                (7, "E", ""),
                (8, "F", r#"quotes "inside" and # no comment"#),
                (9, "A", "again"),
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
            ("A='1\nB=2'\n", "line 1: the closing quote is missing"),
            ("A=\"1\\\"\n", "line 1: the closing quote is missing"),
            ("A=\"1\\n\"", "line 1: in double quotes, a backslash"),
            ("A=\"1\\", "line 1: in double quotes, a backslash"),
            ("A='1' B=2", "line 1: nothing may follow the closing quote"),
            ("A='1'\\\n", "line 1: nothing may follow the closing quote"),
            ("# a comment \\\nA=1", "line 1: a comment must not end with a backslash"),
            ("A=1\\\nB=2", "line 1: a value with a backslash must be in single quotes"),
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

//! The command that this process runs, to be printed for people who want to run it again.
//!
//! **Invariant:** it has no password: a database URL on the command line is replaced by its variable.

use std::env;

/// The command line of this process, quoted for a shell.
pub(super) fn shell_command() -> String {
    quoted(env::args_os().map(|argument| argument.to_string_lossy().into_owned()))
}

/// The flag whose value may contain a password.
const SECRET: &str = "--database-url";

fn quoted(arguments: impl Iterator<Item = String>) -> String {
    let (mut words, mut secret_follows) = (Vec::new(), false);
    for argument in arguments {
        let is_secret = std::mem::replace(&mut secret_follows, argument == SECRET);
        if argument.strip_prefix(SECRET).is_some_and(|value| value.starts_with('=')) {
            words.push(format!("{SECRET} \"$DATABASE_URL\""));
        } else if is_secret {
            words.push("\"$DATABASE_URL\"".to_owned());
        } else {
            words.push(word(&argument));
        }
    }
    words.join(" ")
}

/// Quotes a word if a shell would otherwise change it.
fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_every_argument_as_it_was() {
        for (arguments, command) in [
            (
                &["petstore", "import", "pets/a-1.csv", "--key-column=sku"][..],
                "petstore import pets/a-1.csv --key-column=sku",
            ),
            (
                &["petstore", "import", "", "a b", "it's", "$HOME", "*", "é", "a\nb"],
                "petstore import '' 'a b' 'it'\\''s' '$HOME' '*' 'é' 'a\nb'",
            ),
        ] {
            assert_eq!(quoted(arguments.iter().map(ToString::to_string)), command);
        }
    }

    #[test]
    fn a_database_url_is_replaced_by_its_variable() {
        for arguments in [
            &["petstore", "import", "--database-url", "postgresql://a:secret@b/c", "a.csv"][..],
            &["petstore", "import", "--database-url=postgresql://a:secret@b/c", "a.csv"],
        ] {
            let command = quoted(arguments.iter().map(ToString::to_string));
            assert_eq!(command, "petstore import --database-url \"$DATABASE_URL\" a.csv");
        }
        let file = ["petstore", "import", "--database-url-file", "url", "a.csv"];
        assert_eq!(quoted(file.iter().map(ToString::to_string)), file.join(" "));
    }
}

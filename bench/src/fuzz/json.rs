//! A strict JSON reader. It shares no code with the service, so that both cannot be wrong in the same way.

/// The deepest nesting of an answer is the interface document's.
const MAX_DEPTH: usize = 64;

#[derive(Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool,
    /// As it was written.
    Number(String),
    String(String),
    Array(Vec<Json>),
    /// No name appears twice.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads one value and nothing else.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.skip_space();
        if reader.at == text.len() { Ok(value) } else { Err("something after the value") }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find_map(|(known, value)| (known == name).then_some(value))
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        if let Self::Number(text) = self { text.parse().ok() } else { None }
    }

    pub(super) fn items(&self) -> Option<&[Self]> {
        if let Self::Array(items) = self { Some(items) } else { None }
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, &'static str> {
        if depth > MAX_DEPTH {
            return Err("nested too deeply");
        }
        self.skip_space();
        match self.peek() {
            Some(b'"') => self.string().map(Json::String),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.take("null") => Ok(Json::Null),
            _ if self.take("true") || self.take("false") => Ok(Json::Bool),
            _ => Err("not a value"),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, &'static str> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take("]") {
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take("]") {
                return Ok(Json::Array(items));
            }
            if !self.take(",") {
                return Err("an array without an end");
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, &'static str> {
        self.at += 1;
        let mut members: Vec<(String, Json)> = Vec::new();
        self.skip_space();
        if self.take("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            let name = self.string()?;
            self.skip_space();
            if !self.take(":") {
                return Err("a member without a colon");
            }
            if members.iter().any(|(known, _)| *known == name) {
                return Err("a member twice");
            }
            let value = self.value(depth + 1)?;
            members.push((name, value));
            self.skip_space();
            if self.take("}") {
                return Ok(Json::Object(members));
            }
            if !self.take(",") {
                return Err("an object without an end");
            }
        }
    }

    fn number(&mut self) -> Result<Json, &'static str> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        let digits = text.trim_start_matches('-');
        let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
        if leading_zero || text.parse::<f64>().is_err() {
            return Err("not a number");
        }
        Ok(Json::Number(text.to_owned()))
    }

    fn string(&mut self) -> Result<String, &'static str> {
        if !self.take("\"") {
            return Err("not a string");
        }
        let mut value = String::new();
        loop {
            let rest = &self.text[self.at..];
            let next = rest.chars().next().ok_or("a string without an end")?;
            self.at += next.len_utf8();
            match next {
                '"' => return Ok(value),
                '\\' => value.push(self.escaped()?),
                ..' ' => return Err("a control character in a string"),
                _ => value.push(next),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, &'static str> {
        let byte = self.peek().ok_or("a string without an end")?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' => Ok(char::from(byte)),
            b'b' => Ok('\u{8}'),
            b'f' => Ok('\u{c}'),
            b'n' => Ok('\n'),
            b'r' => Ok('\r'),
            b't' => Ok('\t'),
            b'u' => {
                let first = self.unit()?;
                let second = if (0xD800..0xDC00).contains(&first) && self.take("\\u") {
                    Some(self.unit()?)
                } else {
                    None
                };
                let units = [Some(first), second].into_iter().flatten();
                char::decode_utf16(units).next().and_then(Result::ok).ok_or("half of a surrogate pair")
            }
            _ => Err("an unknown escape"),
        }
    }

    fn unit(&mut self) -> Result<u16, &'static str> {
        let digits = self.text.get(self.at..self.at + 4).ok_or("a short escape")?;
        self.at += 4;
        u16::from_str_radix(digits, 16).map_err(|_| "an escape that is not hexadecimal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_is_read() {
        let json =
            Json::parse(br#" {"code":"a\u00e9\ud83d\udc15\n","status":400, "x":[1,-2.5e3,true,null,{}]} "#);
        let json = json.unwrap();
        assert_eq!(json.get("code").and_then(Json::text), Some("aé🐕\n"));
        assert_eq!(json.get("status").and_then(Json::integer), Some(400));
        assert_eq!(json.get("x").and_then(Json::items).map(<[Json]>::len), Some(5));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\":1}{}",
            "{\"a\":1,\"a\":2}",
            "01",
            "1.2.3",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"a\nb\"",
            "\"a",
            "nul",
            "{a:1}",
            "[1 2]",
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Json::parse(b"\"\xff\"").is_err());
    }
}

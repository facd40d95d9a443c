//! The commands of a shell script that call a program.
//!
//! Just enough of the shell's syntax to find words: quotes, operators, substitutions and comments. A substitution and a
//! variable count as one word, `1`, since what they would become is not known.

/// The arguments of each command that calls `program`, with that name first.
pub fn commands(script: &str, program: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { chars: script.chars().collect(), at: 0, found: Vec::new(), program };
    reader.list(None);
    reader.found
}

struct Reader<'a> {
    chars: Vec<char>,
    at: usize,
    found: Vec<Vec<String>>,
    program: &'a str,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    /// Reads commands up to a closing bracket, or to the end.
    fn list(&mut self, close: Option<char>) {
        let mut words = Vec::new();
        while let Some(char) = self.peek() {
            self.at += 1;
            match char {
                _ if Some(char) == close => break,
                '\\' if self.peek() == Some('\n') => self.at += 1,
                '#' => self.skip_line(),
                ' ' | '\t' => {}
                '\n' | ';' | '&' | '|' | '(' | ')' => self.end(&mut words),
                '<' | '>' => self.redirection(&mut words),
                _ => {
                    self.at -= 1;
                    let word = self.word();
                    words.push(word);
                }
            }
        }
        self.end(&mut words);
    }

    fn skip_line(&mut self) {
        while self.peek().is_some_and(|char| char != '\n') {
            self.at += 1;
        }
    }

    /// Leaves out the operator of a redirection, the number before it, and the file after it.
    fn redirection(&mut self, words: &mut Vec<String>) {
        let is_next_to_a_number = self.chars.get(self.at.wrapping_sub(2)).is_some_and(char::is_ascii_digit);
        if is_next_to_a_number && words.last().is_some_and(|word| word.len() == 1) {
            words.pop();
        }
        while self.peek().is_some_and(|char| " <>&-".contains(char)) {
            self.at += 1;
        }
        if self.peek().is_some_and(|char| !"\n;|()".contains(char)) {
            self.word();
        }
    }

    fn word(&mut self) -> String {
        let (mut word, mut quote) = (String::new(), None);
        while let Some(char) = self.peek() {
            match (quote, char) {
                (None, ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>') => break,
                (None, '\'' | '"') => quote = Some(char),
                (Some(open), _) if open == char => quote = None,
                (Some('\''), _) => word.push(char),
                (_, '\\') => {
                    self.at += 1;
                    word.extend(self.peek().filter(|char| *char != '\n'));
                }
                (_, '$') => {
                    self.expansion();
                    word.push('1');
                    continue;
                }
                _ => word.push(char),
            }
            self.at += 1;
        }
        word
    }

    /// Reads `$NAME`, `${…}` or `$(…)`, and finds the commands in the last one.
    fn expansion(&mut self) {
        self.at += 1;
        match self.peek() {
            Some('(') => {
                self.at += 1;
                self.list(Some(')'));
            }
            Some('{') => {
                while self.peek().is_some_and(|char| char != '}') {
                    self.at += 1;
                }
                self.at += 1;
            }
            Some(char) if char.is_alphanumeric() || char == '_' => {
                while self.peek().is_some_and(|char| char.is_alphanumeric() || char == '_') {
                    self.at += 1;
                }
            }
            _ => self.at += 1,
        }
    }

    /// Keeps a command if it calls the program, after assignments and words such as `if` and `exec`.
    fn end(&mut self, words: &mut Vec<String>) {
        let command = std::mem::take(words);
        let is_before = |word: &&String| {
            let is_assignment = word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
            });
            is_assignment
                || [
                    "if", "then", "else", "elif", "while", "until", "do", "!", "{", "exec", "time", "nohup",
                    "env", "sudo",
                ]
                .contains(&word.as_str())
        };
        let before = command.iter().take_while(is_before).count();
        if command.get(before).is_some_and(|word| word == self.program) {
            self.found.push(command[before..].to_vec());
        } else if let Some([first, quoted, ..]) = command.get(before..)
            && first == "trap"
        {
            self.found.extend(commands(quoted, self.program));
        }
    }
}

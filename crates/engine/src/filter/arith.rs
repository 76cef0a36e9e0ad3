//! Comparisons of computed numbers: `tcp[tcpflags] & (tcp-syn | tcp-ack) = tcp-syn`.

use super::FilterError;
use super::ast::{Arith, Primitive, Proto};
use super::lex::Kind;
use super::parse::Parser;
use super::program::{Binary, Compare};

/// How tight a sign binds. `%` and `^` have no precedence of their own in pcap's grammar: they take
/// all that follows, and every other sign lets them.
const LOOSEST: u8 = 1;
const UNARY: u8 = 6;

fn binary(sign: &str) -> Option<(Binary, Option<u8>)> {
    Some(match sign {
        "|" => (Binary::Or, Some(1)),
        "&" => (Binary::And, Some(2)),
        "<<" => (Binary::Shl, Some(3)),
        ">>" => (Binary::Shr, Some(3)),
        "+" => (Binary::Add, Some(4)),
        "-" => (Binary::Sub, Some(4)),
        "*" => (Binary::Mul, Some(5)),
        "/" => (Binary::Div, Some(5)),
        "%" => (Binary::Rem, None),
        "^" => (Binary::Xor, None),
        _ => return None,
    })
}

/// How the sides are compared, and whether the opposite is meant.
fn comparison(sign: &str) -> Option<(Compare, bool)> {
    Some(match sign {
        "=" | "==" => (Compare::Equal, false),
        "!=" => (Compare::Equal, true),
        ">" => (Compare::Greater, false),
        "<=" => (Compare::Greater, true),
        ">=" => (Compare::NotLess, false),
        "<" => (Compare::NotLess, true),
        _ => return None,
    })
}

impl Parser<'_> {
    /// Whether a comparison follows.
    pub(super) fn begins_arith(&self) -> bool {
        match self.peek().kind {
            Kind::Number(_) | Kind::Sign("-") => true,
            // What stands behind the closing parenthesis decides.
            Kind::Sign("(") => match self.after_parens() {
                Kind::Sign(sign) => binary(sign).is_some() || comparison(sign).is_some(),
                _ => false,
            },
            Kind::Word if matches!(self.word(), "len" | "length") => true,
            Kind::Word => Proto::named(self.word()).is_some() && self.look(1).kind == Kind::Sign("["),
            _ => false,
        }
    }

    pub(super) fn relation(&mut self) -> Result<Primitive, FilterError> {
        let a = self.arith(LOOSEST)?;
        let found = match self.peek().kind {
            Kind::Sign(sign) => comparison(sign),
            _ => None,
        };
        let Some((compare, negated)) = found else { return Err(self.unexpected("=, !=, <, <=, > or >=")) };
        self.advance();
        let b = self.arith(LOOSEST)?;
        Ok(Primitive::Relation { a, compare, negated, b })
    }

    fn arith(&mut self, least: u8) -> Result<Arith, FilterError> {
        let mut left = self.operand()?;
        while let Kind::Sign(sign) = self.peek().kind {
            let Some((binary, level)) = binary(sign) else { break };
            if level.is_some_and(|level| level < least) {
                break;
            }
            self.advance();
            let wrong = match (binary, &self.peek().kind) {
                (Binary::Div | Binary::Rem, Kind::Number(0)) => Some("divides by zero"),
                (Binary::Shl | Binary::Shr, Kind::Number(32..)) => Some("shifts by more than 31 bits"),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(self.error(wrong));
            }
            let right = self.deeper(|parser| parser.arith(level.map_or(LOOSEST, |level| level + 1)))?;
            left = Arith::Binary(binary, left.into(), right.into());
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Arith, FilterError> {
        match self.peek().kind {
            Kind::Number(number) => {
                self.advance();
                Ok(Arith::Number(number))
            }
            Kind::Sign("-") => {
                self.advance();
                let operand = self.deeper(|parser| parser.arith(UNARY))?;
                Ok(Arith::Negate(operand.into()))
            }
            Kind::Sign("(") => {
                self.advance();
                let inner = self.deeper(|parser| parser.arith(LOOSEST))?;
                self.expect(")")?;
                Ok(inner)
            }
            _ if matches!(self.word(), "len" | "length") => {
                self.advance();
                Ok(Arith::Len)
            }
            _ => self.load(),
        }
    }

    fn load(&mut self) -> Result<Arith, FilterError> {
        let expected = "a number, len, or bytes of a header such as ip[6:2]";
        let Some(proto) = Proto::named(self.word()) else { return Err(self.unexpected(expected)) };
        if matches!(proto, Proto::OverIp(50 | 51) | Proto::Link(0x00..0x600 | 0x80f3)) {
            return Err(self.error("has no bytes that are found by an index: write ip[…] or ether[…]"));
        }
        self.advance();
        self.expect("[")?;
        let index = self.deeper(|parser| parser.arith(LOOSEST))?;
        let mut size = 1;
        if self.is_sign(":") {
            self.advance();
            size = match self.peek().kind {
                Kind::Number(1) => 1,
                Kind::Number(2) => 2,
                Kind::Number(4) => 4,
                _ => return Err(self.unexpected("1, 2 or 4 bytes")),
            };
            self.advance();
        }
        self.expect("]")?;
        Ok(Arith::Load { proto, index: index.into(), size })
    }
}

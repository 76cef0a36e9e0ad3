//! HTTP/1.1, as far as it is needed: `GET` and `HEAD` of three paths, a connection for each.
//!
//! A request with a body, or another method, is refused. A page of another site can't read an
//! answer: there is no CORS header. A name of another site that resolves to the loopback (DNS
//! rebinding) is refused by its `Host`: on the loopback it must be an address or `localhost`.
//! Elsewhere all names are accepted, because what reaches the address can read it by the address as
//! well.

use super::format::{Format, text};
use crate::control::Service;
use crate::server::Answers;
use httparse::{EMPTY_HEADER, Header, Status};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// The page; each response has another nonce.
const PAGE: &str = include_str!("page.html");

/// What is served.
pub(crate) struct Http {
    service: Service,
    /// Requests must name an address or `localhost` as their host.
    on_loopback: bool,
    random: RandomState,
    pages: u64,
}

/// A response without its body.
struct Head {
    status: &'static str,
    content_type: &'static str,
    more: String,
}

impl Head {
    fn ok(content_type: &'static str) -> Head {
        Head { status: "200 OK", content_type, more: String::new() }
    }

    /// An error; its body is the status.
    fn error(status: &'static str) -> (Head, String) {
        (Head { status, ..Head::ok("text/plain; charset=utf-8") }, format!("{status}\n"))
    }
}

impl Http {
    pub(crate) fn new(service: Service, on_loopback: bool) -> Http {
        Http { service, on_loopback, random: RandomState::new(), pages: 0 }
    }

    /// The response to a complete request.
    fn respond(&mut self, method: &str, target: &str, version: u8, headers: &[Header<'_>]) -> (Head, String) {
        let all = |name: &str| {
            let values = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
            values.map(|header| std::str::from_utf8(header.value).unwrap_or("?")).collect::<Vec<_>>()
        };
        let is_known = match all("host")[..] {
            [] => version == 0,
            [host] => !self.on_loopback || is_local(host),
            _ => false,
        };
        if !is_known {
            let (head, _) = Head::error("403 Forbidden");
            return (head, "403 Forbidden: the host must be an address or localhost\n".into());
        }
        if !matches!(method, "GET" | "HEAD") {
            let (head, body) = Head::error("405 Method Not Allowed");
            return (Head { more: "Allow: GET, HEAD\r\n".into(), ..head }, body);
        }
        match target.split('?').next().unwrap_or_default() {
            "/metrics" => {
                let format = accepted(&all("accept").join(","));
                (Head::ok(format.content_type()), text(&self.service.state(false), format))
            }
            "/state" => match serde_json::to_string(&self.service.state(true)) {
                Ok(json) => (Head::ok("application/json"), json),
                Err(_) => Head::error("500 Internal Server Error"),
            },
            "/" => {
                self.pages += 1;
                let nonce = format!(
                    "{:016x}{:016x}",
                    self.random.hash_one((0, self.pages)),
                    self.random.hash_one((1, self.pages))
                );
                let policy = format!(
                    "Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
                     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                );
                let head = Head { more: policy, ..Head::ok("text/html; charset=utf-8") };
                (head, PAGE.replace("@NONCE@", &nonce))
            }
            _ => Head::error("404 Not Found"),
        }
    }
}

impl Answers for Http {
    const LONGEST: usize = 8 << 10;

    fn answer(&mut self, request: &[u8], ended: bool) -> Vec<u8> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let mut is_head = false;
        let (head, body) = match parsed.parse(request) {
            Ok(Status::Partial) if request.len() >= Self::LONGEST => Head::error("431 Request Header Fields Too Large"),
            Ok(Status::Partial) if ended && !request.is_empty() => Head::error("400 Bad Request"),
            Ok(Status::Partial) => return Vec::new(),
            Err(httparse::Error::TooManyHeaders) => Head::error("431 Request Header Fields Too Large"),
            Err(_) => Head::error("400 Bad Request"),
            Ok(Status::Complete(_)) => {
                let (method, target) = (parsed.method.unwrap_or_default(), parsed.path.unwrap_or_default());
                is_head = method == "HEAD";
                self.respond(method, target, parsed.version.unwrap_or(1), parsed.headers)
            }
        };
        let mut out = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n{}\r\n",
            head.status,
            head.content_type,
            body.len(),
            head.more,
        );
        if !is_head {
            out += &body;
        }
        out.into_bytes()
    }
}

/// Whether a `Host` names this machine by an address, or as `localhost`.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// The format that a client prefers: OpenMetrics if it asks for it, and no less than for plain
/// text.
fn accepted(accept: &str) -> Format {
    let quality = |wanted: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let is_wanted = parts.next().is_some_and(|media| media.eq_ignore_ascii_case(wanted));
            let q = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse::<f32>().ok());
            is_wanted.then(|| q.unwrap_or(0.0))
        };
        accept.split(',').filter_map(of).fold(0.0, f32::max)
    };
    let open = quality("application/openmetrics-text");
    if open > 0.0 && open >= quality("text/plain") { Format::OpenMetrics } else { Format::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn http(on_loopback: bool) -> Http {
        Http::new(Service { observers: Arc::new(Vec::new), reload: None }, on_loopback)
    }

    /// The response to a request, in which `\n` stands for the end of a line.
    fn ask(request: &str) -> String {
        String::from_utf8(http(true).answer(request.replace('\n', "\r\n").as_bytes(), false)).unwrap()
    }

    #[test]
    fn paths_and_methods_that_do_not_exist_are_refused_by_name() {
        let status = |request: &str| ask(request).lines().next().unwrap_or_default().to_owned();
        assert_eq!(status("GET /metrics HTTP/1.1\nHost: localhost:9900\n\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET /state?x=1 HTTP/1.1\nhost: 127.0.0.1\n\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET / HTTP/1.0\n\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET /../etc/passwd HTTP/1.1\nHost: [::1]:1\n\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status("POST /state HTTP/1.1\nHost: [::1]:1\n\n"), "HTTP/1.1 405 Method Not Allowed");
        assert!(ask("POST / HTTP/1.1\nHost: [::1]\n\n").contains("\r\nAllow: GET, HEAD\r\n"));
        assert_eq!(status("\u{1}\u{2}\n\n"), "HTTP/1.1 400 Bad Request");
        assert_eq!(ask("GET / HTTP/1.1\nHost: a"), "");
        let long = format!("GET / HTTP/1.1\nx: {}", "a".repeat(Http::LONGEST));
        assert_eq!(status(&long), "HTTP/1.1 431 Request Header Fields Too Large");
        let many = format!("GET / HTTP/1.1\n{}\n", "x: y\n".repeat(MAX_HEADERS + 1));
        assert_eq!(status(&many), "HTTP/1.1 431 Request Header Fields Too Large");
    }

    #[test]
    fn a_name_of_another_site_that_resolves_to_the_loopback_is_refused() {
        for (host, allowed) in [
            ("localhost", true),
            ("LOCALHOST:9900", true),
            ("127.0.0.1:9900", true),
            ("[::1]:9900", true),
            ("evil.example:9900", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            let answer = ask(&format!("GET /state HTTP/1.1\nHost: {host}\n\n"));
            assert_eq!(answer.starts_with("HTTP/1.1 200"), allowed, "{host}: {answer}");
            assert!(!answer.to_ascii_lowercase().contains("access-control"), "{answer}");
        }
        assert!(ask("GET /state HTTP/1.1\n\n").starts_with("HTTP/1.1 403"));
        assert!(ask("GET /state HTTP/1.1\nHost: ::1\nHost: localhost\n\n").starts_with("HTTP/1.1 403"));
        let elsewhere = http(false).answer(b"GET /state HTTP/1.1\r\nHost: router1:9900\r\n\r\n", false);
        assert!(elsewhere.starts_with(b"HTTP/1.1 200"));
    }

    #[test]
    fn the_format_is_the_one_that_the_client_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(accepted(prometheus), Format::OpenMetrics);
        for plain in [
            "",
            "*/*",
            "text/plain",
            "text/plain, application/openmetrics-text; q=0.1",
            "application/openmetrics-text;q=0",
        ] {
            assert_eq!(accepted(plain), Format::Prometheus, "{plain}");
        }
    }

    #[test]
    fn the_page_is_whole_in_itself_and_its_policy_allows_nothing_else() {
        let answer = ask("GET / HTTP/1.1\nHost: localhost\n\n");
        let nonce = answer.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert!(answer.contains(&format!("<script nonce=\"{nonce}\">")) && !answer.contains("@NONCE@"));
        assert!(
            !answer.contains("http://") && !answer.contains("https://") && !answer.contains("innerHTML"),
            "{answer}"
        );
        let again = ask("GET / HTTP/1.1\nHost: localhost\n\n");
        assert!(!again.contains(nonce));
    }

    #[test]
    fn the_answer_to_head_has_the_length_and_no_body() {
        let answer = ask("HEAD /metrics HTTP/1.1\nHost: localhost\n\n");
        assert!(
            answer.ends_with("\r\n\r\n")
                && answer.contains("Content-Length: ")
                && !answer.contains("Content-Length: 0")
        );
    }
}

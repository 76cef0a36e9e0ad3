use super::*;
use crate::uri::Uri;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use towpath_engine::rules::Rules;

fn config(options: &str) -> Config {
    Config::from_uri(&format!("sock:/s?{options}").parse::<Uri>().unwrap()).unwrap()
}

fn wrong(options: &str) -> String {
    Config::from_uri(&format!("sock:/s?{options}").parse::<Uri>().unwrap()).unwrap_err().to_string()
}

/// Limits of a user and of all: sessions, rules, memory, metadata.
fn limits(options: &str, available: u64) -> [[u64; 4]; 2] {
    let Limits { user, all } = Limits::within(&config(options), available);
    [user.0, all.0]
}

const MIB: u64 = 1 << 20;

#[test]
fn a_user_may_have_half_of_all_unless_no_other_user_can_connect() {
    let all = [64, 512, 4096 * MIB, 128 * MIB];
    assert_eq!(limits("", 1 << 40), [all, all]);
    assert_eq!(limits("mode=600", 1 << 40), [all, all]);
    for mode in ["660", "606", "610"] {
        assert_eq!(limits(&format!("mode={mode}"), 1 << 40), [all.map(|n| n / 2), all]);
    }
    assert_eq!(limits("mode=666,sessions=1,all-rules=3", 1 << 40)[0][..2], [1, 2]);
}

#[test]
fn memory_and_metadata_are_parts_of_what_the_process_may_use() {
    assert_eq!(limits("", 60 * MIB)[1][2..], [15 * MIB, 60 * MIB / 8]);
    let all =
        "memory=1M,user-memory=4096,metadata=2M,user-metadata=1M,sessions=9,user-sessions=3,all-rules=7,user-rules=2";
    assert_eq!(limits(all, 60 * MIB), [[3, 2, 4096, 1_000_000], [9, 7, 1_000_000, 2_000_000]]);
    assert_eq!(limits("user-memory=1G", 60 * MIB)[0][2], 15 * MIB, "no more than all");
}

#[test]
fn a_limit_of_a_user_above_that_of_all_is_an_error() {
    for options in ["user-sessions=65", "all-rules=9,user-rules=10", "memory=1M,user-memory=2M", "metadata=100"] {
        assert!(wrong(options).contains("must be a whole number from"), "{options}");
    }
}

#[test]
fn a_refusal_names_the_limit_its_value_and_the_option_that_mends_it() {
    let account = Arc::new(Account::new(Limits::of(&config("user-sessions=2,sessions=3,memory=2M,user-memory=1M"))));
    let session = || Amounts::default().with(Resource::Sessions, 1);
    let take = |user, amounts| account.take(user, amounts).map_err(|refused| refused.to_string());
    let held = [take(7, session()).unwrap(), take(7, session()).unwrap()];
    assert_eq!(
        take(7, session()).unwrap_err(),
        "1 sessions beside the 2 of other applications of user 7: a user may have 2 (user-sessions=2); \
         end sessions, or raise user-sessions= of the port"
    );
    let third = take(8, session()).unwrap();
    let refused = take(9, session()).unwrap_err();
    assert!(refused.contains("beside the 3 of other applications: together they may have 3 (sessions=3)"), "{refused}");
    let refused = take(9, Amounts::default().with(Resource::Memory, 1 << 20)).unwrap_err();
    assert!(refused.contains("1048576 bytes of memory") && refused.contains("user-memory=1000000"), "{refused}");
    drop((held, third));
    assert!(take(9, session()).is_ok());
    // The text fits in an answer.
    assert!(refused.len() < 300);
}

#[test]
fn what_stays_on_an_account_is_shown_and_not_given_back() {
    let account = Arc::new(Account::new(Limits::of(&config("memory=1M"))));
    let mut share =
        account.take(7, Amounts::default().with(Resource::Memory, 600_000).with(Resource::Sessions, 1)).unwrap();
    share.keep(Resource::Memory);
    drop(share);
    assert!(account.take(7, Amounts::default().with(Resource::Memory, 600_000)).is_err());
    let rows = account.usage();
    let memory = rows.iter().find(|row| row.user == Some(7) && row.resource == "memory").unwrap();
    assert_eq!((memory.now, memory.peak, memory.limit), (600_000, 600_000, 1_000_000));
    let sessions = rows.iter().find(|row| row.user.is_none() && row.resource == "sessions").unwrap();
    assert_eq!((sessions.now, sessions.peak), (0, 1));
}

#[test]
fn users_without_a_session_are_forgotten_when_there_are_many() {
    let account = Arc::new(Account::new(Limits::of(&config("sessions=1000"))));
    let stays = account.take(0, Amounts::default().with(Resource::Sessions, 1)).unwrap();
    for user in 1..1000 {
        drop(account.take(user, Amounts::default().with(Resource::Sessions, 1)).unwrap());
    }
    let users: Vec<_> = account.usage().iter().filter_map(|row| row.user).collect();
    assert!(users.contains(&0) && users.contains(&999) && users.len() <= 64 * 4, "{users:?}");
    drop(stays);
}

proptest! {
    #[test]
    fn accounts_agree_with_a_plain_model(
        steps in prop::collection::vec((0u32..4, 0usize..4, 0u64..40, any::<bool>()), 1..200),
    ) {
        let limits = Limits { user: Amounts([50; 4]), all: Amounts([120; 4]) };
        let account = Arc::new(Account::new(limits));
        let (mut held, mut model, mut peaks) = (Vec::new(), Vec::<(u32, usize, u64)>::new(), HashMap::new());
        for (user, at, n, gives) in steps {
            if gives && !held.is_empty() {
                let at = at % held.len();
                drop(held.swap_remove(at));
                model.swap_remove(at);
                continue;
            }
            let sum = |of: Option<u32>| -> u64 {
                model.iter().filter(|(u, r, _)| *r == at && of.is_none_or(|of| of == *u)).map(|(.., n)| n).sum()
            };
            let fits = n == 0 || (sum(Some(user)) + n <= 50 && sum(None) + n <= 120);
            let taken = account.take(user, Amounts::default().with(Resource::ALL[at], n));
            prop_assert_eq!(taken.is_ok(), fits);
            if let Ok(share) = taken {
                held.push(share);
                model.push((user, at, n));
                for of in [Some(user), None] {
                    let now: u64 = model.iter().filter(|(u, r, _)| *r == at && of.is_none_or(|of| of == *u)).map(|(.., n)| n).sum();
                    let peak = peaks.entry((of, at)).or_insert(0);
                    *peak = now.max(*peak);
                }
            }
        }
        for row in account.usage() {
            let at = Resource::ALL.iter().position(|resource| resource.name() == row.resource).unwrap();
            let now: u64 = model.iter().filter(|(u, r, _)| *r == at && row.user.is_none_or(|of| of == *u)).map(|(.., n)| n).sum();
            prop_assert_eq!((row.now, row.peak), (now, peaks.get(&(row.user, at)).copied().unwrap_or(0)));
        }
        drop(held);
        prop_assert!(account.usage().iter().all(|row| row.now == 0));
    }
}

/// Whether a port with `allow` lets a user ask for rules.
fn allows(allow: &str, user: u32, rules: &[&str]) -> Result<(), String> {
    let config = config(&format!("allow={allow}"));
    let matches = rules.iter().filter(|rule| **rule != "default").map(|rule| format!("pass {rule}"));
    covers(config.allow.as_deref(), user, &Rules::parse(matches).unwrap(), rules.contains(&"default"))
}

#[test]
fn a_user_may_ask_for_what_lies_within_one_entry_of_its_own() {
    let allow = "1000:udp dport 1024-2047+1000:dst 10.1.0.0/16+*:tcp dport 80+7:any";
    let allowed = |user, rules: &[&str]| allows(allow, user, rules).is_ok();
    assert!(allowed(1000, &["udp dport 1024-2047", "udp dport 1500 src 10.0.0.1", "tcp dst 10.1.2.3", "tcp dport 80"]));
    assert!(!allowed(1000, &["udp"]) && !allowed(1000, &["udp dport 1000-1100"]) && !allowed(1000, &["any"]));
    assert!(!allowed(1000, &["tcp dport 80", "dst 10.0.0.0/8"]), "each rule must be allowed");
    assert!(allowed(1001, &["tcp dport 80"]) && !allowed(1001, &["udp dport 1024"]));
    assert!(allowed(7, &["arp", "default"]), "everything includes the default");
    assert!(!allowed(1000, &["default"]) && allowed(1000, &[]));
    assert!(allows("1000:default", 1000, &["default"]).is_ok());
    let error = allows(allow, 1000, &["tcp dport 80", "udp dport 53"]).unwrap_err();
    assert_eq!(
        error,
        "'udp dport 53': user 1000 may ask for udp dport 1024-2047, dst 10.1.0.0/16, tcp dport 80 (allow=)"
    );
    assert!(allows("1:any", 2, &["default"]).unwrap_err().contains("'default': user 2 may ask for nothing"));
}

#[test]
fn an_entry_of_allow_that_is_wrong_is_named_with_its_form() {
    assert!(wrong("allow=udp").contains("must be USER:MATCH"));
    assert!(wrong("allow=x:udp").contains("must be USER:MATCH"));
    assert!(wrong("allow=1:udp dport 99999+2:any").contains("99999"));
}

//! The header and the library agree, and the C example runs with both kinds of library.

use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;
use towpath_gro_c::abi::{Config, Offload, Packet, Sink, Stats};
use towpath_testing::{Need, needs};

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The directory of the libraries, which cargo builds for the tests.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn cc() -> Command {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg("-I").arg(at("include"));
    cc
}

#[test]
fn the_structures_of_the_header_are_those_of_the_library() {
    if !needs("the_structures_of_the_header_are_those_of_the_library", &[Need::Program("cc")]) {
        return;
    }
    macro_rules! layout {
        ($($name:literal = $type:ty { $($field:ident),* })*) => {
            [$(
                format!("_Static_assert(sizeof(struct {}) == {}, \"size\");\n", $name, size_of::<$type>()),
                $(format!(
                    "_Static_assert(offsetof(struct {}, {}) == {}, \"{}\");\n",
                    $name, stringify!($field), offset_of!($type, $field), stringify!($field),
                ),)*
            )*]
        };
    }
    let asserts = layout! {
        "towpath_gro_offload" = Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset }
        "towpath_gro_config" = Config { flows, max_size, max_packets, link, udp, auto_bypass }
        "towpath_gro_packet" = Packet { data, len, capacity, offload, user }
        "towpath_gro_sink" = Sink { packet, spent, context }
        "towpath_gro_stats" = Stats { packets, merged, bypassed }
    };
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("layout.c");
    let kernel = "#include <linux/virtio_net.h>\n\
        _Static_assert(sizeof(struct virtio_net_hdr) == sizeof(struct towpath_gro_offload), \"virtio\");\n\
        _Static_assert(offsetof(struct virtio_net_hdr, csum_start) == 6, \"virtio\");\n\
        _Static_assert(TOWPATH_GRO_TCPV6 == VIRTIO_NET_HDR_GSO_TCPV6, \"virtio\");\n";
    let virtio = if Path::new("/usr/include/linux/virtio_net.h").exists() { kernel } else { "" };
    std::fs::write(&source, format!("#include <towpath_gro.h>\n{}{virtio}int unused;\n", asserts.concat())).unwrap();
    run(cc().arg("-fsyntax-only").arg(&source));
}

#[test]
fn the_header_declares_every_function_of_the_library_and_no_other() {
    if !needs("the_header_declares_every_function_of_the_library_and_no_other", &[Need::Program("nm")]) {
        return;
    }
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(libraries().join("libtowpath_gro_c.so")));
    let mut exported: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(at("include/towpath_gro.h")).unwrap();
    let code = header.split("*/").map(|part| part.split("/*").next().unwrap_or_default()).collect::<String>();
    let names = code.split(|c: char| c != '_' && !c.is_ascii_alphanumeric() && c != '(');
    let mut declared: Vec<_> =
        names.filter(|name| name.starts_with("towpath_gro_")).filter_map(|name| name.split_once('(')).collect();
    declared.sort_unstable();
    assert_eq!(declared.iter().map(|(name, _)| *name).collect::<Vec<_>>(), exported);
}

#[test]
fn the_example_merges_and_splits_a_stream_with_the_shared_and_the_static_library() {
    let name = "the_example_merges_and_splits_a_stream_with_the_shared_and_the_static_library";
    if !needs(name, &[Need::Program("cc")]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("merge");
    let libraries = libraries();
    let shared = ["-ltowpath_gro_c".to_owned(), format!("-Wl,-rpath,{}", libraries.display())];
    let whole = libraries.join("libtowpath_gro_c.a").display().to_string();
    let with_static = [whole, "-lpthread".to_owned(), "-ldl".to_owned(), "-lm".to_owned()];
    for library in [&shared[..], &with_static[..]] {
        let mut cc = cc();
        cc.arg(at("examples/merge.c")).arg("-o").arg(&program).arg("-L").arg(&libraries).args(library);
        run(&mut cc);
        assert_eq!(run(&mut Command::new(&program)), "40 packets, 1 super-packet, 40 packets\n");
    }
}

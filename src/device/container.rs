//! The memory of a container: the limits of its control groups, which may be below the machine's.

use std::fs;
use std::path::Path;

/// Memory limit of this process and the bytes that it may still take: each the least among its control groups, of version
/// 2 or 1, which need not be those of one group. `None` without a limit.
pub fn memory() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    strictest(&groups, Path::new("/sys/fs/cgroup"))
}

/// The strictest limits of the `groups` of `/proc/self/cgroup`, mounted below `root`.
fn strictest(groups: &str, root: &Path) -> Option<(u64, u64)> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => below(root, path, ["memory.max", "memory.current", "inactive_file"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let names =
                    ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                below(&root.join("memory"), path, names)
            }
            _ => None,
        }
    });
    limits.reduce(stricter)
}

/// The lower limit, and the fewer bytes that are left.
fn stricter((limit, left): (u64, u64), (other, rest): (u64, u64)) -> (u64, u64) {
    (limit.min(other), left.min(rest))
}

/// The strictest limits of a group and its ancestors. In a container the path may be that on the host, which is missing
/// here; the mount itself is then the container's group. `limit` and `usage` are names of files; `cached` is an entry of
/// `memory.stat`, the part of the usage that the kernel takes back when needed: files that were not read lately.
fn below(mount: &Path, path: &str, [limit, usage, cached]: [&str; 3]) -> Option<(u64, u64)> {
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|folder| folder.starts_with(mount));
    let limits = groups.filter_map(|folder| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // Version 1 expresses no limit by a number beyond all memory.
        let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
        let stat = read("memory.stat").unwrap_or_default();
        let entry = |line: &str| line.strip_prefix(cached)?.trim().parse::<u64>().ok();
        let cached = stat.lines().find_map(entry).unwrap_or(0);
        let used = number(usage).unwrap_or(0).saturating_sub(cached);
        Some((limit, limit.saturating_sub(used)))
    });
    limits.reduce(stricter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_control_group_counts() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        let write = |path: &str, text: &str| {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        };
        assert_eq!(strictest("0::/a/b\n", root), None);
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "400\n");
        write("a/memory.current", "150\n");
        assert_eq!(strictest("0::/a/b\n", root), Some((400, 250)));
        // A group that shares less than its own limit with others.
        write("a/b/memory.max", "300\n");
        write("a/b/memory.current", "20\n");
        assert_eq!(strictest("0::/a/b\n", root), Some((300, 250)));
        write("a/memory.stat", "file 90\ninactive_file 30\nactive_file 60\n");
        assert_eq!(strictest("0::/a/b\n", root), Some((300, 280)));
        write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.limit_in_bytes", "300\n");
        write("memory/memory.usage_in_bytes", "100\n");
        assert_eq!(strictest("4:cpu:/c\n3:memory:/c\n0::/a/b\n", root), Some((300, 200)));
        assert_eq!(strictest("3:memory:/docker/gone\n", root), Some((300, 200)));
    }
}

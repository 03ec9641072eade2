//! The memory of a container: the limits of its control groups, which may be below the machine's.

use std::fs;
use std::path::Path;

/// Memory limit of this process and the unused part of it, bytes: the strictest of its control groups, of version 2 or 1.
/// `None` without a limit.
pub fn memory() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    strictest(&groups, Path::new("/sys/fs/cgroup"))
}

/// The strictest limit of the `groups` of `/proc/self/cgroup`, mounted below `root`.
fn strictest(groups: &str, root: &Path) -> Option<(u64, u64)> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => below(root, path, ["memory.max", "memory.current"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let files = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
                below(&root.join("memory"), path, files)
            }
            _ => None,
        }
    });
    limits.min_by_key(|(_, left)| *left)
}

/// The strictest limit of a group and its ancestors. In a container the path may be that on the host, which is missing
/// here; the mount itself is then the container's group.
fn below(mount: &Path, path: &str, [limit, usage]: [&str; 2]) -> Option<(u64, u64)> {
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|folder| folder.starts_with(mount));
    let limits = groups.filter_map(|folder| {
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        // Version 1 expresses no limit by a number beyond all memory.
        let limit = number(limit).filter(|limit| *limit < 1 << 60)?;
        Some((limit, limit.saturating_sub(number(usage).unwrap_or(0))))
    });
    limits.min_by_key(|(_, left)| *left)
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
        write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.limit_in_bytes", "300\n");
        write("memory/memory.usage_in_bytes", "100\n");
        assert_eq!(strictest("4:cpu:/c\n3:memory:/c\n0::/a/b\n", root), Some((300, 200)));
        assert_eq!(strictest("3:memory:/docker/gone\n", root), Some((300, 200)));
    }
}

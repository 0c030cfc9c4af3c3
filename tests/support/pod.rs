//! Runs a process as a kubelet and a container runtime would, as far as a child process can have it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::not_tested::not_tested;
use super::process::Process;
use super::{folders, names, relay};

/// A user that no password file knows.
const USER: &str = "34567";

/// In a mount namespace of its own: a root of nothing but what the binary is linked to (or of what an image
/// holds), the volumes at their places, all of it read-only; then any user, without a privilege, with this
/// environment and no other. An image has no programs of its own to do that with.
const CONTAINER: &str = r#"
set -eu
root=$1 binary=$2 image=$3
shift 3
mount -t tmpfs -o mode=755 pod "$root"
if [ -n "$image" ]; then
    cp -a "$image/." "$root"
    given="/proc /dev /etc/hosts /etc/resolv.conf"
else
    cp "$binary" "$root/postdate"
    given="/proc /dev /etc/hosts /etc/resolv.conf /etc/nsswitch.conf /usr /lib /lib64 /bin"
fi
mkdir -p "$root/etc"
for at in $given; do
    if [ -L "$at" ]; then
        cp -P "$at" "$root$at"
    elif [ -d "$at" ]; then
        mkdir -p "$root$at"
        mount --rbind "$at" "$root$at"
    elif [ -e "$at" ]; then
        cp "$at" "$root$at"
    fi
done
while [ "$1" != -- ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
    shift 2
done
shift
mount -o remount,ro "$root"
if touch "$root/etc/x" 2>/dev/null; then
    echo "the root is not read-only" >&2
    exit 70
fi
exec "$@"
"#;

/// A volume of a ConfigMap or of Secrets, as a kubelet makes it: the files lie in a folder of this
/// generation, `..data` points to it, and each name at the top points through `..data`.
#[derive(Clone, Debug)]
pub struct Volume {
    folder: PathBuf,
    mount: String,
}

impl Volume {
    /// With these files, by their path in the volume, mounted there.
    pub fn new(mount: &str, files: &[(String, String)]) -> Self {
        let volume = Self {
            folder: folders::new("volume"),
            mount: mount.to_owned(),
        };
        // Those above it, which `tempfile` made for us alone, are no obstacle: it is bind-mounted.
        volume.update(files);
        volume
    }

    /// Puts other files into it, all at once, as a kubelet does when the ConfigMap has changed.
    pub fn update(&self, files: &[(String, String)]) {
        let generation = names::unique("..generation");
        for (path, text) in files {
            let file = self.folder.join(&generation).join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        symlink(&generation, self.folder.join("..data_tmp")).expect("a link");
        fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data"))
            .expect("swapped at once");
        for (path, _) in files {
            let top = Path::new(path).components().next().expect("a name");
            let link = self.folder.join(top);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(top), link).expect("a link");
            }
        }
    }
}

/// Files of a volume.
pub fn files(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files
        .iter()
        .map(|&(path, text)| (path.to_owned(), text.to_owned()))
        .collect()
}

/// Why no such container can be had here, if so: no right to make a mount namespace, or to mount in it. A container
/// that CI itself runs in often has neither.
fn missing() -> Option<String> {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    command.args((!rustix::process::geteuid().is_root()).then_some("--map-root-user"));
    command.args([
        "sh",
        "-c",
        "mount -t tmpfs probe /mnt && mount -o remount,ro /mnt",
    ]);
    match command.output() {
        Err(why) => Some(format!("unshare: {why}")),
        Ok(tried) if tried.status.success() => None,
        Ok(tried) => Some(String::from_utf8_lossy(&tried.stderr).trim().to_owned()),
    }
}

/// Reports whether such containers can be had; if not, notes it in a line that `scripts/test` repeats at its end.
pub fn available(test: &str) -> bool {
    let missing = missing();
    if let Some(why) = &missing {
        not_tested(test, why);
    }
    missing.is_none()
}

/// Runs the binary in such a container until it ends: an init container, a Job.
pub async fn finish(volumes: &[Volume], environment: &[(String, String)], args: &[&str]) -> Output {
    let mut command = Command::new("unshare");
    command.args(arguments(volumes, environment, args));
    tokio::task::spawn_blocking(move || command.output().expect("unshare"))
        .await
        .expect("no panic")
}

/// Starts the binary in such a container.
pub fn start(volumes: &[Volume], environment: &[(String, String)], args: &[&str]) -> Process {
    let folder = folders::new("container");
    Process::start("postdate", &folder, "unshare", |command| {
        command.args(arguments(volumes, environment, args));
    })
}

fn arguments(volumes: &[Volume], environment: &[(String, String)], args: &[&str]) -> Vec<String> {
    let is_root = rustix::process::geteuid().is_root();
    // The unpacked image that scripts/test-image has built; without it the binary under test.
    let image = std::env::var("POSTDATE_TEST_IMAGE").unwrap_or_default();
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let root = text(&folders::new("root"));
    let mut all = vec!["--mount".to_owned()];
    // Who is not root is not root in there either, whatever it is called.
    all.extend((!is_root).then(|| "--map-root-user".to_owned()));
    all.extend(
        [
            "sh",
            "-c",
            CONTAINER,
            "container",
            &root,
            &text(&relay::binary()),
            &image,
        ]
        .map(str::to_owned),
    );
    for volume in volumes {
        all.extend([text(&volume.folder), volume.mount.clone()]);
    }
    all.push("--".to_owned());
    all.extend(privileges(&root, is_root, &image));
    all.extend(
        environment
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    if image.is_empty() {
        all.push("/postdate".to_owned());
    } else {
        // The image's own environment; an image has no programs to change root and user with.
        all.push("SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt".to_owned());
        all.push("/usr/sbin/chroot".to_owned());
        all.extend(is_root.then(|| format!("--userspec={USER}:{USER}")));
        all.push(root);
        // Emulator for an image of another architecture: its path in the image.
        all.extend(std::env::var("POSTDATE_TEST_EMULATOR").ok());
        all.push("/usr/bin/postdate".to_owned());
    }
    all.extend(args.iter().map(|&arg| arg.to_owned()));
    all
}

/// Into the new root where it has programs, and without privileges but those that are still needed.
fn privileges(root: &str, is_root: bool, image: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    if image.is_empty() {
        words.extend(
            [
                "chroot",
                root,
                "setpriv",
                "--pdeathsig",
                "KILL",
                "--bounding-set=-all",
            ]
            .map(str::to_owned),
        );
        if is_root {
            words.extend(["--reuid", USER, "--regid", USER].map(str::to_owned));
        }
    } else {
        let needed = "--bounding-set=-all,+sys_chroot,+setuid,+setgid";
        words.extend(["setpriv", needed].map(str::to_owned));
    }
    words.extend(is_root.then(|| "--clear-groups".to_owned()));
    words.extend(["--no-new-privs", "--inh-caps=-all", "--", "env", "-i"].map(str::to_owned));
    words
}

import { existsSync, readdirSync } from "node:fs";

/** What a release is built for. The library is bound to glibc, as Bun's own glibc runtime is. */
export const TARGETS = {
  // Not "native": it would use whatever the building host has, and the standard library's AES picks
  // an instruction that AVX-512 hosts without VAES do not have. v3 alone leaves AES out.
  "linux-x64": {
    zigTarget: "x86_64-linux-gnu.2.28",
    zigCpu: "x86_64_v3+aes+pclmul",
    runtimePackage: "@oven/bun-linux-x64",
    npmCpu: "x64",
    elfMachine: 62,
  },
  "linux-arm64": {
    zigTarget: "aarch64-linux-gnu.2.28",
    zigCpu: "baseline+aes",
    runtimePackage: "@oven/bun-linux-aarch64",
    npmCpu: "arm64",
    elfMachine: 183,
  },
} as const;

export type Target = keyof typeof TARGETS;

export const TARGET_NAMES = Object.keys(TARGETS) as Target[];

export function isTarget(name: string): name is Target {
  return Object.hasOwn(TARGETS, name);
}

function libcIsMusl(): boolean {
  const hasLoader = (folder: string, prefix: string) =>
    existsSync(folder) && readdirSync(folder).some((name) => name.startsWith(prefix));
  const glibc = ["/lib64", "/lib"].some((folder) => hasLoader(folder, "ld-linux-"));
  return !glibc && hasLoader("/lib", "ld-musl-");
}

export type Host =
  | { readonly ok: true; readonly target: Target }
  | { readonly ok: false; readonly why: string };

/** The target whose library this host can load, or why there is none. */
export function hostTarget(): Host {
  const name = `${process.platform}-${process.arch}`;
  if (!isTarget(name)) {
    return {
      ok: false,
      why: `the library is built for ${TARGET_NAMES.join(" and ")}, not ${name}`,
    };
  }
  if (libcIsMusl()) return { ok: false, why: "the library needs glibc and this host has musl" };
  return { ok: true, target: name };
}

/** `"linux-x64,linux-arm64"` or `"all"` → targets; a name nobody knows is an error in words. */
export function parseTargets(text: string): Target[] {
  if (text === "all") return TARGET_NAMES;
  return text.split(",").map((name) => {
    if (isTarget(name)) return name;
    throw new Error(`unknown target "${name}": use ${TARGET_NAMES.join(", ")} or all`);
  });
}

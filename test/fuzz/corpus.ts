import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const TEST = join(import.meta.dir, "..");

/** The golden frames of one direction. */
export function goldenFrames(direction: "request" | "reply"): Uint8Array[] {
  const folder = join(TEST, "engine/golden");
  const names = readdirSync(folder).filter((name) => name.endsWith(`.${direction}.hex`));
  return names.sort().map((name) => {
    const hex = readFileSync(join(folder, name), "utf8").replace(/#.*$/gm, "").replace(/\s+/g, "");
    return Uint8Array.fromHex(hex);
  });
}

/** Encodings of manifests, from the golden file that both languages are held to. */
export function goldenManifests(): Uint8Array[] {
  const text = readFileSync(join(TEST, "identity/golden/manifest.json"), "utf8");
  const found = text.match(/"[0-9a-f]{32,}"/g) ?? [];
  return found.map((hex) => Uint8Array.fromHex(hex.slice(1, -1)));
}

/** Lines of the small fixture traces, each behind a byte that names one of `formats` formats. */
export function traceLines(formats: number): Uint8Array[] {
  const folder = join(TEST, "data/traces");
  const names = readdirSync(folder, { recursive: true }) as string[];
  const lines: string[] = [];
  for (const name of names.sort()) {
    if (!/\.(jsonl|csv)(\.gz)?$/.test(name)) continue;
    const bytes = readFileSync(join(folder, name));
    const text = Buffer.from(name.endsWith(".gz") ? Bun.gunzipSync(bytes) : bytes).toString();
    lines.push(...text.split("\n").slice(0, 5));
  }
  const short = lines.filter((line) => line.length > 0 && line.length < 20_000);
  return short.flatMap((line) =>
    Array.from({ length: formats }, (_, i) => new Uint8Array(Buffer.from(`${i}${line}`))),
  );
}

export function repositoryFile(path: string): Uint8Array {
  return new Uint8Array(readFileSync(join(TEST, "..", path)));
}

import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type ZipEntry, zipOf } from "./zip.ts";

/** The table `project` of a pyproject.toml, as far as the wheels use it. */
interface Project {
  readonly name: string;
  readonly version: string;
  readonly description: string;
  readonly readme: string;
  readonly license: { readonly text: string };
  readonly "requires-python": string;
  readonly dependencies?: readonly string[];
  readonly "optional-dependencies"?: Readonly<Record<string, readonly string[]>>;
  readonly "entry-points"?: Readonly<Record<string, Readonly<Record<string, string>>>>;
}

export interface WheelSource {
  /** The folder of the package's modules; its name is the import name. */
  readonly packageFolder: string;
  /** The folder of pyproject.toml and of the README that it names. */
  readonly projectFolder: string;
  readonly licenseFile: string;
}

export interface WheelKind {
  /** Platform tags, or none for a wheel of Python alone. */
  readonly platforms: readonly string[];
  /** Files beside the modules, by their path in the package. */
  readonly extra: ReadonlyMap<string, Uint8Array>;
}

export interface Wheel {
  readonly fileName: string;
  readonly bytes: Uint8Array;
}

/** What a wheel takes from a package's folder. */
const TAKEN = /\.py$|^py\.typed$/;

function modulesIn(folder: string, below = ""): string[] {
  return readdirSync(join(folder, below), { withFileTypes: true }).flatMap((entry) => {
    const path = below === "" ? entry.name : `${below}/${entry.name}`;
    if (entry.isDirectory()) return modulesIn(folder, path);
    return TAKEN.test(entry.name) ? [path] : [];
  });
}

export function readProject(folder: string): Project {
  const file = Bun.TOML.parse(readFileSync(join(folder, "pyproject.toml"), "utf8"));
  return (file as { project: Project }).project;
}

function metadata(project: Project, readme: string): string {
  const lines = [
    "Metadata-Version: 2.1",
    `Name: ${project.name}`,
    `Version: ${project.version}`,
    `Summary: ${project.description}`,
    `License: ${project.license.text}`,
    `Requires-Python: ${project["requires-python"]}`,
  ];
  for (const needed of project.dependencies ?? []) lines.push(`Requires-Dist: ${needed}`);
  for (const [extra, all] of Object.entries(project["optional-dependencies"] ?? {})) {
    lines.push(`Provides-Extra: ${extra}`);
    for (const needed of all) lines.push(`Requires-Dist: ${needed}; extra == "${extra}"`);
  }
  return `${[...lines, "Description-Content-Type: text/markdown"].join("\n")}\n\n${readme}`;
}

function tagsOf({ platforms }: WheelKind): string[] {
  return platforms.length === 0 ? ["py3-none-any"] : platforms.map((name) => `py3-none-${name}`);
}

function wheelFile(kind: WheelKind): string {
  const head = ["Wheel-Version: 1.0", "Generator: hearth", `Root-Is-Purelib: ${isPure(kind)}`];
  return `${[...head, ...tagsOf(kind).map((tag) => `Tag: ${tag}`)].join("\n")}\n`;
}

function isPure(kind: WheelKind): boolean {
  return kind.platforms.length === 0;
}

function entryPoints(project: Project): string | undefined {
  const groups = Object.entries(project["entry-points"] ?? {});
  if (groups.length === 0) return undefined;
  const section = ([group, points]: (typeof groups)[number]) =>
    [`[${group}]`, ...Object.entries(points).map(([name, at]) => `${name} = ${at}`), ""].join("\n");
  return groups.map(section).join("\n");
}

function recordLine({ path, bytes }: ZipEntry): string {
  const digest = createHash("sha256").update(bytes).digest("base64url");
  return `${path},sha256=${digest},${bytes.length}`;
}

const byPath = (a: ZipEntry, b: ZipEntry) => (a.path < b.path ? -1 : 1);

/** One wheel. The same sources make the same bytes. */
export function wheelOf(source: WheelSource, kind: WheelKind): Wheel {
  const project = readProject(source.projectFolder);
  const name = project.name.replaceAll("-", "_");
  const info = `${name}-${project.version}.dist-info`;
  const text = (path: string, content: string): ZipEntry => {
    return { path: `${info}/${path}`, bytes: Buffer.from(content, "utf8") };
  };
  const readme = readFileSync(join(source.projectFolder, project.readme), "utf8");
  const points = entryPoints(project);
  const payload: ZipEntry[] = [
    ...modulesIn(source.packageFolder).map((path) => {
      return { path: `${name}/${path}`, bytes: readFileSync(join(source.packageFolder, path)) };
    }),
    ...[...kind.extra].map(([path, bytes]) => {
      return { path: `${name}/${path}`, bytes, executable: true };
    }),
  ];
  const described = [
    text("METADATA", metadata(project, readme)),
    text("WHEEL", wheelFile(kind)),
    ...(points === undefined ? [] : [text("entry_points.txt", points)]),
    text("licenses/LICENSE", readFileSync(source.licenseFile, "utf8")),
  ];
  // The installer's advice: RECORD comes last, after the rest of its folder.
  const entries = [...payload.sort(byPath), ...described];
  const own = `${info}/RECORD,,`;
  const record = text("RECORD", `${[...entries.map(recordLine), own].join("\n")}\n`);
  const tag = isPure(kind) ? "py3-none-any" : `py3-none-${kind.platforms.join(".")}`;
  return {
    fileName: `${name}-${project.version}-${tag}.whl`,
    bytes: zipOf([...entries, record]),
  };
}

import { posix } from "node:path";
import {
  FOLDERS,
  MAIN,
  MAIN_MAY_IMPORT,
  MAY_EXIT,
  PACKAGE_HOMES,
  SEAM,
  SEAM_EXCEPTIONS,
} from "./import-table.ts";
import { maskTypeScript } from "./mask.ts";
import type { Tree } from "./tree.ts";

export interface Import {
  readonly specifier: string;
  readonly line: number;
  /** `import type`: gone at run time. */
  readonly isType: boolean;
}

const IMPORTS = new RegExp(
  [
    /\b(?:import|export)\b(?<head>[^;'"`]*?)\bfrom\s*["']/,
    /\bimport\s*["']/,
    /\b(?:import|require)\s*\(\s*["']/,
  ]
    .map((pattern) => pattern.source)
    .join("|"),
  "g",
);

export function importsOf(source: string): Import[] {
  const found: Import[] = [];
  for (const match of maskTypeScript(source).matchAll(IMPORTS)) {
    const start = match.index + match[0].length;
    const quote = source[start - 1]!;
    const specifier = source.slice(start, source.indexOf(quote, start));
    const isType = /^\s+type\s+[\w{*]/.test(match.groups?.head ?? "");
    found.push({ specifier, line: source.slice(0, start).split("\n").length, isType });
  }
  return found;
}

/** The longest folder of the table that holds the file; else the first folder below `src`. */
function folderOf(path: string): string {
  const parts = path.split("/").slice(1, -1);
  for (let depth = parts.length; depth > 1; depth--) {
    const folder = parts.slice(0, depth).join("/");
    if (Object.hasOwn(FOLDERS, folder)) return folder;
  }
  return parts[0] ?? "";
}

/** Steps down from the folder that both files share to the imported one. */
function stepsDown(from: string, to: string): string[] {
  const [a, b] = [posix.dirname(from).split("/"), to.split("/")];
  let shared = 0;
  while (shared < a.length && shared < b.length - 1 && a[shared] === b[shared]) shared++;
  return b.slice(shared);
}

/**
 * A file beside or above, or the door of a folder: never a file behind another door. A folder
 * inside a room has a door when it has an `index.ts`; without one it only groups the room's own
 * files.
 */
function isDoor(tree: Tree, from: string, to: string): boolean {
  // A folder of the table may lie inside another one: its door is open to both sides.
  if (to === `src/${folderOf(to)}/index.ts` && folderOf(from) !== folderOf(to)) return true;
  const steps = stepsDown(from, to);
  const shared = to.split("/").slice(0, -steps.length);
  for (let depth = 1; depth < steps.length; depth++) {
    const folder = [...shared, ...steps.slice(0, depth)].join("/");
    const isRoom = folder.split("/").length === 2 && folder.startsWith("src/");
    if (!isRoom && !tree.has(`${folder}/index.ts`)) continue;
    return to === `${folder}/index.ts`;
  }
  return true;
}

/** Tests and scripts come from outside: any door of `src/`, at any depth, is in their reach. */
function isDoorFromOutside(to: string): boolean {
  return !to.startsWith("src/") || to === MAIN || to.endsWith("/index.ts");
}

function checkRelative(tree: Tree, path: string, to: string): string | undefined {
  // What is carried as a file or a text (the library, a config, a trace) has no door.
  if (!to.endsWith(".ts")) return undefined;
  const isInside = path.startsWith("src/");
  const isAllowed = isInside ? isDoor(tree, path, to) : isDoorFromOutside(to);
  if (!isAllowed) return `reaches past a door: ${to}`;
  if (!isInside) return undefined;
  if (!to.startsWith("src/")) return `imports ${to}, which is outside src/`;
  if (to === MAIN) return "imports the entry point";
  const [own, other] = [folderOf(path), folderOf(to)];
  if (path !== MAIN && own === other) return undefined;
  const allowed = path === MAIN ? MAIN_MAY_IMPORT : (FOLDERS[own] ?? []);
  return allowed.includes(other) ? undefined : `may not import from src/${other}`;
}

function checkPackage(path: string, specifier: string): string | undefined {
  if (!path.startsWith("src/")) return undefined;
  if (specifier.startsWith("node:") || specifier === "bun") return undefined;
  const name = specifier
    .split("/")
    .slice(0, specifier.startsWith("@") ? 2 : 1)
    .join("/");
  const homes = PACKAGE_HOMES[name];
  if (homes === undefined) return `imports ${specifier}, which has no home in the import table`;
  const isHome = homes.includes(folderOf(path));
  return isHome
    ? undefined
    : `imports ${specifier}, which is at home in src/${homes.join(", src/")}`;
}

function typeScript(tree: Tree): [string, string][] {
  return [...tree].filter(([path]) => path.endsWith(".ts"));
}

/** Imports past doors, against the table, or of packages outside their home. */
export function checkImports(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [path, source] of typeScript(tree)) {
    for (const { specifier, line } of importsOf(source)) {
      const problem = specifier.startsWith(".")
        ? checkRelative(tree, path, posix.join(posix.dirname(path), specifier))
        : checkPackage(path, specifier);
      if (problem !== undefined) problems.push(`${path}:${line} ${problem}`);
    }
  }
  return problems;
}

/** Unknown folders in `src/`, and folders without a door. */
export function checkFolders(tree: Tree): string[] {
  const problems: string[] = [];
  const folders = new Set<string>();
  for (const path of tree.keys()) {
    if (!path.startsWith("src/") || path === MAIN) continue;
    const folder = folderOf(path);
    if (path.split("/").length === 2) problems.push(`${path} lies beside the folders of src/`);
    else if (!Object.hasOwn(FOLDERS, folder)) problems.push(`src/${folder} is not in the table`);
    else folders.add(folder);
  }
  for (const folder of folders) {
    if (!tree.has(`src/${folder}/index.ts`)) problems.push(`src/${folder} has no index.ts`);
  }
  return [...new Set(problems)];
}

/** Circles of imports that exist at run time, each named once by its files. */
export function checkCycles(tree: Tree): string[] {
  const edges = new Map<string, string[]>();
  for (const [path, source] of typeScript(tree)) {
    const targets = importsOf(source)
      .filter(({ specifier, isType }) => specifier.startsWith(".") && !isType)
      .map(({ specifier }) => posix.join(posix.dirname(path), specifier));
    edges.set(path, targets);
  }
  const problems: string[] = [];
  const done = new Set<string>();
  const visit = (path: string, trail: string[]) => {
    const at = trail.indexOf(path);
    if (at >= 0) problems.push([...trail.slice(at), path].join(" -> "));
    if (at >= 0 || done.has(path)) return;
    for (const next of edges.get(path) ?? []) visit(next, [...trail, path]);
    done.add(path);
  };
  for (const path of edges.keys()) visit(path, []);
  return problems;
}

/** Clocks, chance and timers outside `src/core`, and `process.exit` outside the command line. */
export function checkSeam(tree: Tree): string[] {
  const problems: string[] = [];
  for (const [path, source] of typeScript(tree)) {
    if (!path.startsWith("src/")) continue;
    const mayExit = MAY_EXIT.some((prefix) => path.startsWith(prefix));
    const lines = maskTypeScript(source).split("\n");
    for (const [index, text] of lines.entries()) {
      const where = `${path}:${index + 1}`;
      if (!mayExit && /\bprocess\.exit\b/.test(text)) problems.push(`${where} ends the process`);
      if (path.startsWith("src/core/")) continue;
      for (const [name, pattern] of Object.entries(SEAM)) {
        if (SEAM_EXCEPTIONS[path]?.includes(name)) continue;
        if (pattern.test(text)) problems.push(`${where} uses ${name}: take it as a parameter`);
      }
    }
  }
  return problems;
}

import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** The checkout, wherever the command was called from. */
export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

export const NATIVE_DIR = join(ROOT, "dist/native");
export const TOOLCHAIN_DIR = join(ROOT, ".toolchain");
export const BINDINGS_FILE = join(ROOT, "src/native/abi.gen.ts");

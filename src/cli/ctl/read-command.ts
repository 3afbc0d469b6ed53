import { readFile } from "node:fs/promises";
import type { WireCommand } from "../../control/client/index.ts";
import { HearthError, messageOf, parseJson } from "../../core/index.ts";
import { standardInput } from "./standard-input.ts";

/** The command in a file, or on standard input (`-`). Throws USAGE where it is no JSON object. */
export async function readCommand(file: string): Promise<WireCommand> {
  const text = file === "-" ? await standardInput() : await textOf(file);
  const command = parsed(text, file);
  const isObject = typeof command === "object" && command !== null && !Array.isArray(command);
  if (isObject && "type" in command && typeof command.type === "string") {
    return { ...command, type: command.type };
  }
  throw new HearthError("USAGE", `${file} holds no JSON object with a type`);
}

async function textOf(file: string): Promise<string> {
  try {
    return await readFile(file, "utf8");
  } catch (cause) {
    throw new HearthError("USAGE", `${file} cannot be read: ${messageOf(cause)}`, { cause });
  }
}

function parsed(text: string, file: string): unknown {
  try {
    return parseJson(text);
  } catch (cause) {
    throw new HearthError("USAGE", `${file} is no JSON: ${messageOf(cause)}`, { cause });
  }
}

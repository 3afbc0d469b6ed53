import { ERROR_CODES, type ErrorCode } from "../core/index.ts";
import { EXIT_CODES, EXIT_OF_ERROR } from "./exit-codes.ts";

/** The reference page of error codes and exit codes, in Markdown. */
export function renderErrorReference(): string {
  const lines = [
    "# Errors",
    "",
    "Log lines, HTTP answers and messages carry these codes. They are stable. *Again* says whether",
    "the same request may succeed later; *exit* is how a command ends that meets the error.",
    "",
    "| code | meaning | again | exit |",
    "|---|---|---|---|",
    ...(Object.keys(ERROR_CODES) as ErrorCode[]).map((name) => {
      const { meaning, retryable } = ERROR_CODES[name];
      const { code } = EXIT_CODES[EXIT_OF_ERROR[name]];
      return `| \`${name}\` | ${meaning} | ${retryable ? "yes" : "no"} | ${code} |`;
    }),
    "",
    "## Exit codes",
    "",
    "| exit | meaning |",
    "|---|---|",
    ...Object.values(EXIT_CODES).map(({ code, meaning }) => `| ${code} | ${meaning} |`),
  ];
  return `${lines.join("\n")}\n`;
}

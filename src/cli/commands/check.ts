import { hostProblems } from "../../app/index.ts";
import { formatProblem, loadConfig, readMachineFacts, renderConfig } from "../../config/index.ts";
import { defineCommand } from "../command.ts";
import { jsonFlag, requiredArgument, toggle } from "../flags.ts";
import { text } from "../kinds.ts";
import { printJson } from "../output.ts";

export const command = defineCommand({
  description: [
    "Reads the file as the agent would and names everything that is wrong with file, line and " +
      "key. Sums are checked against this machine's memory; groups and files it names must be " +
      "there. Nothing is started.",
  ],
  arguments: { file: requiredArgument(text("FILE"), "the configuration to check") },
  flags: {
    show: toggle("print the configuration with every default filled in"),
    json: jsonFlag,
  },
  examples: [
    { words: "check /etc/hearth/hearth.toml", what: "says ok, or what to change" },
    { words: "check --show hearth.toml", what: "the same file with all defaults written out" },
    { words: "check --json hearth.toml", what: "problems as JSON, for editors and pipelines" },
  ],
  exits: ["configRefused"],
  async run({ flags, arguments: { file }, io }) {
    const result = await loadConfig(file, readMachineFacts());
    if (!result.ok) {
      if (flags.json) printJson(io, { file, ok: false, problems: result.problems });
      else for (const problem of result.problems) io.out.write(`${formatProblem(problem)}\n`);
      return "configRefused";
    }
    const missing = await hostProblems(result.config);
    if (missing.length > 0) {
      if (flags.json) printJson(io, { file, ok: false, problems: missing });
      else for (const problem of missing) io.out.write(`${file}: ${problem}\n`);
      return "configRefused";
    }
    const config = flags.show ? { config: result.config } : {};
    if (flags.json) printJson(io, { file, ok: true, problems: [], ...config });
    else io.out.write(flags.show ? renderConfig(result.config) : `${file}: ok\n`);
    return "ok";
  },
});

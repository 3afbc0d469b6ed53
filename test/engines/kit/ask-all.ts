import type { Answer, Question } from "./client.ts";
import { say } from "./say.ts";

const SAY_EVERY_MS = 20_000;

interface Asked {
  ask(question: Question): Promise<Answer>;
}

/** Sends all questions, `width` at a time, in order. Rejects at the first that fails. */
export async function askAll(
  server: Asked,
  questions: readonly Question[],
  width: number,
  title: string,
): Promise<Answer[]> {
  const answers: Answer[] = new Array(questions.length);
  let next = 0;
  let said = performance.now();
  const work = async () => {
    while (next < questions.length) {
      const index = next++;
      answers[index] = await server.ask(questions[index]!);
      if (performance.now() - said > SAY_EVERY_MS) {
        said = performance.now();
        say(`${title}: ${next} of ${questions.length}`);
      }
    }
  };
  await Promise.all(Array.from({ length: width }, work));
  return answers;
}

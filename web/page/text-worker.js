// A worker: trains a language model, an iteration after the other, and answers prompts between them.

/** Milliseconds between two answers to the prompt that the visitor has put. */
const EVERY = 600;

let training;
let question;
let answered = -Infinity;
let paused = false;
let looping = false;

/** Lets messages in between two iterations; a timer would cost milliseconds each time. */
const turn = () => new Promise((done) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { port1.close(); done(); };
  port2.postMessage(0);
});

const sentence = (error) => String(error?.message ?? error);

async function start({ text, file, paused: waits }) {
  paused = waits;
  try {
    const { default: init, TextTraining } = await import("./train.js");
    await init();
    training = file ? TextTraining.from_file(file, text) : new TextTraining(text);
    postMessage({ is: "about", about: JSON.parse(training.about()) });
  } catch (error) {
    return postMessage({ is: "refused", why: sentence(error) });
  }
  await train();
}

/** Answers the visitor's prompt by the model as it is. */
function answer() {
  if (!question || !training) return;
  const { prompt, drawn } = question;
  answered = performance.now();
  try {
    postMessage({ is: "answers", prompt, answers: JSON.parse(training.answer(prompt, drawn)) });
  } catch (error) {
    postMessage({ is: "answers", prompt, why: sentence(error) });
    question = undefined;
  }
}

async function train() {
  if (looping || !training) return;
  looping = true;
  while (!paused && !training.is_done()) {
    try {
      postMessage({ is: "record", ...JSON.parse(training.iterate()) });
    } catch (error) {
      return postMessage({ is: "failed", why: sentence(error) });
    }
    if (performance.now() - answered > EVERY) answer();
    await turn();
  }
  looping = false;
  answer();
  postMessage({ is: training.is_done() ? "done" : "paused" });
}

onmessage = ({ data }) => {
  if (data.do === "start") start(data);
  if (data.do === "pause") paused = true;
  if (data.do === "go on") {
    paused = false;
    train();
  }
  if (data.do === "ask") {
    question = data;
    answer();
  }
  if (data.do === "file" && training) {
    const file = training.file();
    postMessage({ is: "file", file }, [file.buffer]);
  }
};

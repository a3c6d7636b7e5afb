// SPDX-License-Identifier: Apache-2.0
// Reading lines, asking, printing; Ctrl-C ends an answer, not the chat.
#include "launch/chat/cmd_chat.hpp"

#include "launch/chat/chat_text.hpp"
#include "launch/chat/http_client.hpp"
#include "launch/cluster.hpp" // exit codes
#include "launch/process.hpp" // unique_fd

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sys/eventfd.h>
#include <unistd.h>

namespace di::launch {
namespace {

constexpr int exit_cancelled = 130; ///< as shells have it for SIGINT
constexpr std::size_t input_bytes_max = 16U << 20U;

struct chat_arguments {
  std::string url = "http://localhost:8000";
  chat_settings settings;
  std::string message;
  bool no_thinking = false, hide_reasoning = false, insecure = false, stats = false;
};

int interrupt_event = -1;

extern "C" void on_interrupt(int) {
  const int before = errno;
  (void)::eventfd_write(interrupt_event, 1);
  errno = before;
}

void print(FILE* to, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

void complain(const std::string& what) {
  print(stderr, fmt::format("dilaunch chat: {}\n", what));
}

class chat {
public:
  explicit chat(const chat_arguments& a)
      : arguments_{a}, settings_{a.settings}, colours_{::isatty(STDOUT_FILENO) != 0} {
    settings_.thinking = !a.no_thinking;
  }
  int run();

private:
  result<void> open();
  int one(const std::string& message);
  int talk();
  bool command(const std::string& line);
  result<bool> ask(); ///< false: cancelled
  std::optional<std::string> read_line();
  http_call call(const char* method, const char* target) const;
  bool interrupted() const {
    eventfd_t n = 0;
    return ::eventfd_read(interrupt_event, &n) == 0;
  }

  const chat_arguments& arguments_;
  chat_settings settings_;
  bool colours_;
  http_url server_;
  http_client_options client_;
  unique_fd event_;
  std::vector<chat_turn> turns_;
  std::string typed_; ///< read and not used yet
};

http_call chat::call(const char* method, const char* target) const {
  http_call c;
  c.method = method;
  c.target = target;
  c.headers = {{"User-Agent", "dilaunch-chat"}, {"Accept", "text/event-stream, application/json"}};
  if (const char* key = std::getenv("DI_API_KEY"); key != nullptr && *key != '\0')
    c.headers.emplace_back("Authorization", "Bearer " + plain_text(key));
  return c;
}

/// Signals, and the model's name if none was given.
result<void> chat::open() {
  DI_TRY(server_, parse_url(arguments_.url));
  if (server_.path.ends_with("/v1")) // as clients of other programs are told
    server_.path.resize(server_.path.size() - 3);
  event_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  interrupt_event = event_.get();
  client_.cancel_fd = event_.get();
  client_.check_certificate = !arguments_.insecure;
  struct sigaction on {};
  on.sa_handler = on_interrupt; // no SA_RESTART: a read of the terminal ends
  ::sigaction(SIGINT, &on, nullptr);
  if (!settings_.model.empty())
    return {};
  std::string body;
  DI_TRY(const auto answer, exchange_http(server_, call("GET", "/v1/models"), client_,
                                          [&](const http_answer&, std::string_view part) {
                                            body += part;
                                            return body.size() < (1U << 20U);
                                          }));
  if (answer.status() != 200)
    return fail(ec::unavailable, "{}", error_words(answer.status(), body));
  DI_TRY(settings_.model, first_model(body));
  return {};
}

/// One answer to what has been said; it becomes a turn.
result<bool> chat::ask() {
  auto c = call("POST", "/v1/chat/completions");
  c.headers.emplace_back("Content-Type", "application/json");
  c.body = chat_body(settings_, turns_);
  chat_view view{colours_, !arguments_.hide_reasoning};
  sse_reader events;
  std::string refusal;
  result<void> trouble;
  const auto take = [&](const http_answer& a, std::string_view part) {
    if (a.status() != 200) {
      refusal += part;
      return refusal.size() < (1U << 16U);
    }
    const auto heard = events.feed(part);
    if (!heard.ok()) {
      trouble = fail(heard.error());
      return false;
    }
    for (const auto& m : *heard) {
      const auto text = view.take(m);
      if (!text.ok()) {
        trouble = fail(text.error());
        return false;
      }
      print(stdout, *text);
    }
    return !view.done();
  };
  const auto answer = exchange_http(server_, c, client_, take);
  print(stdout, view.finish());
  turns_.push_back({"assistant", view.answer()}); // also a part: so both sides know what was said
  if (!answer.ok()) {
    if (answer.error().code == ec::cancelled)
      return false;
    return fail(answer.error());
  }
  DI_TRY_VOID(trouble);
  if (answer->status() != 200)
    return fail(ec::unavailable, "{}", error_words(answer->status(), refusal));
  if (!view.done())
    return fail(ec::unavailable, "the answer broke off");
  if (view.reason() == "length")
    complain("the answer was cut: max_tokens or the context is used up");
  if (arguments_.stats)
    complain(fmt::format("{} prompt tokens ({} cached), {} tokens, {}", view.prompt_tokens(),
                         view.cached_tokens(), view.output_tokens(), view.reason()));
  return true;
}

int chat::one(const std::string& message) {
  turns_.push_back({"user", message});
  const auto answered = ask();
  if (!answered.ok()) {
    complain(answered.error().what);
    return exit_gave_up;
  }
  return *answered ? exit_done : exit_cancelled;
}

/// A line of the terminal; nothing at its end. Ctrl-C gives an empty line.
std::optional<std::string> chat::read_line() {
  for (;;) {
    if (const auto end = typed_.find('\n'); end != std::string::npos) {
      std::string line = typed_.substr(0, end);
      typed_.erase(0, end + 1);
      return line;
    }
    char room[4096];
    const auto n = ::read(STDIN_FILENO, room, sizeof(room));
    if (n < 0 && errno == EINTR) {
      if (!interrupted())
        continue;
      typed_.clear();
      print(stdout, "\n");
      return "";
    }
    if (n <= 0) {
      if (typed_.empty())
        return std::nullopt;
      return std::exchange(typed_, {});
    }
    typed_.append(room, static_cast<std::size_t>(n));
    if (typed_.size() > input_bytes_max)
      return std::nullopt;
  }
}

/// @return false: it is no command
bool chat::command(const std::string& line) {
  if (line == "/reset") {
    turns_.clear();
    print(stdout, "The conversation begins anew.\n");
  } else if (line == "/thinking") {
    settings_.thinking = !settings_.thinking;
    print(stdout, fmt::format("Thinking is {}.\n", settings_.thinking ? "on" : "off"));
  } else if (line == "/help") {
    print(stdout, "/reset  begin anew\n/thinking  on or off\n/quit  or Ctrl-D\nCtrl-C ends an "
                  "answer.\n");
  } else {
    return false;
  }
  return true;
}

int chat::talk() {
  print(stdout, fmt::format("{} at {}; /help says what else there is, Ctrl-D ends.\n",
                            plain_text(settings_.model), arguments_.url));
  for (;;) {
    print(stdout, colours_ ? "\033[1m> \033[0m" : "> ");
    const auto line = read_line();
    if (!line || *line == "/quit" || *line == "/exit") {
      if (!line)
        print(stdout, "\n");
      return exit_done;
    }
    if (line->find_first_not_of(" \t\r") == std::string::npos || command(*line))
      continue;
    (void)interrupted(); // what was pressed before counts no more
    const auto said = turns_.size();
    turns_.push_back({"user", *line});
    const auto answered = ask();
    if (!answered.ok()) {
      turns_.resize(said);
      complain(answered.error().what);
    } else if (!*answered) {
      print(stdout, "[cancelled]\n");
    }
  }
}

int chat::run() {
  if (const auto opened = open(); !opened.ok()) {
    complain(opened.error().what);
    return opened.error().code == ec::bad_argument ? exit_usage : exit_gave_up;
  }
  if (!arguments_.message.empty())
    return one(arguments_.message);
  if (::isatty(STDIN_FILENO) != 0)
    return talk();
  std::string all;
  while (const auto line = read_line()) {
    if (interrupted())
      return exit_cancelled;
    all += *line + "\n";
    if (all.size() > input_bytes_max) {
      complain(fmt::format("more than {} bytes of input", input_bytes_max));
      return exit_usage;
    }
  }
  while (all.ends_with('\n'))
    all.pop_back();
  if (all.empty()) {
    complain("nothing was said on standard input");
    return exit_usage;
  }
  return one(all);
}

} // namespace

void add_chat_command(CLI::App& app, int& exit_code) {
  const auto a = std::make_shared<chat_arguments>();
  auto* c = app.add_subcommand("chat", "Talk to a server in the terminal");
  c->add_option("--url", a->url, "Where it serves")->capture_default_str();
  c->add_option("--model", a->settings.model, "Default: the first that the server names");
  c->add_option("--system", a->settings.system, "System message");
  c->add_flag("--no-thinking", a->no_thinking, "Answer at once, without reasoning");
  c->add_flag("--hide-reasoning", a->hide_reasoning, "Do not show reasoning");
  c->add_option("--effort", a->settings.effort, "Reasoning effort: low, high, max, or 1 to 100");
  c->add_option("--temperature", a->settings.temperature, "Of drawing tokens");
  c->add_option("--max-tokens", a->settings.max_tokens, "Of one answer");
  c->add_option("--seed", a->settings.seed, "The same one gives the same answer");
  c->add_flag("--insecure", a->insecure, "https without checking the certificate");
  c->add_flag("--stats", a->stats, "Print token counts on standard error");
  c->add_option("message", a->message, "Ask this and end; also taken from a pipe");
  c->footer("The environment variable DI_API_KEY is sent as the API key.");
  c->callback([a, &exit_code] { exit_code = chat{*a}.run(); });
}

} // namespace di::launch

"""Small programs in every language that is split by definition, and the definitions to find."""

SOURCES = {
    ".py": (
        """\
@cached
def alpha(a):
    return a


class Beta:
    def gamma(self):
        pass
""",
        {"alpha": "function", "Beta": "class"},
    ),
    ".js": (
        """\
export function alpha(a) { return a }
const beta = () => {
  return 1
}
class Gamma {
  delta() {}
}
""",
        {"alpha": "function", "beta": "function", "Gamma": "class"},
    ),
    ".ts": (
        """\
export interface Alpha { a: number }
export abstract class Beta<T> {
  gamma(): void {}
}
type Delta = string
enum Epsilon { A }
namespace Zeta {
  export function eta() {}
}
""",
        {
            "Alpha": "interface",
            "Beta": "class",
            "Delta": "type",
            "Epsilon": "enum",
            "Zeta": "module",
        },
    ),
    ".tsx": (
        """\
export function Alpha() {
  return <b>a</b>
}
""",
        {"Alpha": "function"},
    ),
    ".go": (
        """\
package p

func Alpha(a int) int {
\treturn a
}

type Beta struct {
\tx int
}

func (b *Beta) Gamma() {
}
""",
        {"Alpha": "function", "Beta": "type", "Beta.Gamma": "method"},
    ),
    ".rs": (
        """\
/// Says alpha.
#[inline]
fn alpha(a: i32) -> i32 {
    a
}
struct Beta { x: i32 }
impl Beta {
    fn gamma(&self) {}
}
trait Delta { fn e(&self); }
enum Epsilon { A }
mod zeta {
    fn eta() {}
}
""",
        {
            "alpha": "function",
            "Beta": "struct",
            "Delta": "trait",
            "Epsilon": "enum",
            "zeta": "module",
        },
    ),
    ".java": (
        """\
package p;

public class Alpha {
  public int beta(int a) { return a; }
}
interface Gamma { void d(); }
enum Delta { A }
record Epsilon(int a) {}
""",
        {"Alpha": "class", "Gamma": "interface", "Delta": "enum", "Epsilon": "class"},
    ),
    ".c": (
        """\
#include <a.h>

static int *alpha(int a)
{
  return 0;
}
struct beta { int x; };
typedef struct { int y; } gamma;
enum delta { A };
""",
        {"alpha": "function", "beta": "struct", "gamma": "type", "delta": "enum"},
    ),
    ".cpp": (
        """\
namespace alpha {
class Beta {
  int gamma() { return 1; }
};
}
template <class T>
T &delta(T &t) { return t; }
int Epsilon::zeta() { return 1; }
""",
        {"alpha": "module", "delta": "function", "Epsilon::zeta": "function"},
    ),
    ".cs": (
        """\
namespace Alpha {
  public class Beta {
    public int Gamma(int a) { return a; }
  }
}
struct Delta { int x; }
interface IEpsilon { void F(); }
""",
        {"Alpha": "module", "Delta": "struct", "IEpsilon": "interface"},
    ),
    ".rb": (
        """\
module Alpha
  class Beta
    def gamma(a)
      a
    end
  end
end

def delta
  1
end
""",
        {"Alpha": "module", "delta": "method"},
    ),
}

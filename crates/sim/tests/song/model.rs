//! Formulas (1) to (3) of Song, Yin, Sun, Thakur and Lang (SC'11, section 3.2): how long an
//! operation takes on several servers that serve equal applications in independent random orders,
//! and how long when all servers follow one order.
//!
//! The paper sums powers `k^n` and divides by `m^n`, which overflows at a few hundred servers. Here
//! each term is `(k/m)^n` by repeated squaring, which never leaves the range from 0 to 1.

/// The formulas are sums over the applications; this many take a fraction of a second.
pub const APPLICATIONS_MAX: u32 = 1 << 20;

/// One case of the paper's model: applications that issue one operation each, all at the same time,
/// with one equal part on every server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Model {
    servers: u32,
    applications: u32,
    service: f64,
}

impl Model {
    /// The case of this number of servers and applications. `service` is the time that a server
    /// needs for one part, in any unit; results have the same unit. `None` without a server,
    /// without an application, with more than [`APPLICATIONS_MAX`], or for a time that is negative
    /// or not finite.
    pub(crate) fn new(servers: u32, applications: u32, service: f64) -> Option<Model> {
        let counted = servers > 0 && (1..=APPLICATIONS_MAX).contains(&applications);
        (counted && service.is_finite() && service >= 0.0).then_some(Model {
            servers,
            applications,
            service,
        })
    }

    /// Formula (1): the mean time until an operation's last part is served, when every server
    /// serves the applications in a random order of its own.
    pub(crate) fn uncoordinated(&self) -> f64 {
        let m = f64::from(self.applications);
        let below: f64 = (1..self.applications).map(|k| self.all_within(k)).sum();
        (m - below) * self.service
    }

    /// Formula (2): the same mean when all servers follow one order.
    pub(crate) fn coordinated(&self) -> f64 {
        (f64::from(self.applications) + 1.0) / 2.0 * self.service
    }

    /// Formula (3): how much less the coordinated mean is.
    pub(crate) fn saving(&self) -> f64 {
        self.uncoordinated() - self.coordinated()
    }

    /// The chance that an operation's parts have a place among the same `places` on every server.
    fn all_within(&self, places: u32) -> f64 {
        power(
            f64::from(places) / f64::from(self.applications),
            self.servers,
        )
    }
}

/// `base` to the power of `exponent`, by squaring: the same bits on every machine, which the
/// standard library does not promise for its own power functions.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sim::bounds::{Instance, Needs, Order};
    use tidegate_sim::rng::Rng;

    fn model(servers: u32, applications: u32) -> Model {
        Model::new(servers, applications, 1.0).expect("a case that exists")
    }

    #[test]
    fn one_server_gains_nothing() {
        for applications in 1..50 {
            let model = model(1, applications);
            assert!((model.uncoordinated() - model.coordinated()).abs() < 1e-9);
        }
    }

    #[test]
    fn values_by_hand() {
        // Two applications, two servers: the last place is 1 in one case of four, else 2.
        assert_eq!(model(2, 2).uncoordinated(), 1.75);
        assert_eq!(model(2, 2).coordinated(), 1.5);
        assert_eq!(model(2, 2).saving(), 0.25);
    }

    #[test]
    fn saved_shares_of_ten_applications() {
        let expected = [
            (2, 23.1),
            (4, 35.0),
            (8, 41.0),
            (16, 43.8),
            (32, 44.8),
            (64, 45.0),
        ];
        for (servers, percent) in expected {
            let model = model(servers, 10);
            let share = model.saving() / model.uncoordinated() * 100.0;
            assert!((share - percent).abs() < 0.05, "{servers}: {share}");
            // What it comes to with ever more servers: (m - 1) / 2m.
            assert!(share <= 45.0);
        }
    }

    #[test]
    fn thousands_of_servers_do_not_overflow() {
        let model = model(4_000_000_000, 1000);
        assert!((model.uncoordinated() - 1000.0).abs() < 1e-9);
        assert!((model.saving() / model.uncoordinated() - 0.4995).abs() < 1e-3);
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        assert_eq!(Model::new(0, 1, 1.0), None);
        assert_eq!(Model::new(1, 0, 1.0), None);
        assert_eq!(Model::new(1, APPLICATIONS_MAX + 1, 1.0), None);
        assert_eq!(Model::new(1, 1, f64::NAN), None);
        assert_eq!(Model::new(1, 1, -1.0), None);
        let free = Model::new(4, 4, 0.0).expect("free service is a case");
        assert_eq!(free.saving(), 0.0);
    }

    #[test]
    fn random_orders_agree_with_the_formulas() {
        let mut rng = Rng::new(11);
        for (servers, applications) in [(2, 4), (8, 10), (16, 3)] {
            let (mut last_sum, mut operations) = (0.0, 0.0);
            for _ in 0..20_000 {
                let orders: Vec<Vec<u64>> = (0..servers)
                    .map(|_| shuffled(applications, &mut rng))
                    .collect();
                for application in 0..applications as usize {
                    let places = orders.iter().map(|order| order[application]);
                    last_sum += places.max().expect("a server") as f64;
                    operations += 1.0;
                }
            }
            let model = model(servers, applications);
            let last = last_sum / operations;
            assert!((last / model.uncoordinated() - 1.0).abs() < 0.005, "{last}");
        }
    }

    #[test]
    fn the_best_order_of_equal_operations_has_the_coordinated_mean() {
        let operation = Needs {
            work_ns: vec![100; 8],
            ..Needs::default()
        };
        let instance = Instance::new(8, vec![operation; 10]).expect("a time for each server");
        let model = Model::new(8, 10, 100.0).expect("it exists");
        let value = instance.value(&Order::AppId.of(&instance));
        assert_eq!(value.mean_ns(10), model.coordinated());
        assert_eq!(instance.mean_bound_ns(), model.coordinated());
        let mut rng = Rng::new(1);
        let means = (0..2000).map(|_| {
            let orders = instance.random_per_server(&mut rng);
            instance.value_per_server(&orders).mean_ns(10)
        });
        let mean = means.sum::<f64>() / 2000.0;
        assert!((mean / model.uncoordinated() - 1.0).abs() < 0.01, "{mean}");
    }

    /// The places from 1 to `applications` in a random order.
    fn shuffled(applications: u32, rng: &mut Rng) -> Vec<u64> {
        let mut places: Vec<u64> = (1..=u64::from(applications)).collect();
        for i in (1..places.len()).rev() {
            places.swap(i, rng.below(i as u64 + 1) as usize);
        }
        places
    }
}
